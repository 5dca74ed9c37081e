"""Whisper, a middle size, trained in fp16 with a gradient scaler; then it transcribes greedily."""
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
torch.manual_seed(0); cfg = WhisperConfig(d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, pad_token_id=50256)
net = WhisperForConditionalGeneration(cfg).cuda().train(); opt = torch.optim.AdamW(net.parameters(), lr=1e-5); scaler = torch.amp.GradScaler()
for i in range(4):
    mel = torch.randn(8, 80, 3000, device="cuda"); y = torch.randint(0, 50000, (8, 60 + 20 * i), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16): loss = net(input_features=mel, labels=y).loss
    scaler.scale(loss).backward(); scaler.step(opt); scaler.update(); opt.zero_grad(set_to_none=True)
net.eval(); print(net.generate(torch.randn(4, 80, 3000, device="cuda"), max_new_tokens=24, do_sample=False).shape)
