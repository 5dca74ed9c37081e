"""A small GPT of PyTorch's own modules: autocast, fused AdamW, clipped gradients, a batch whose length varies."""
import torch, torch.nn as nn, torch.nn.functional as F
class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__(); self.h = h; self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        b, t, d = x.shape; q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))
torch.manual_seed(0); V, D = 8192, 512
emb, body, head = nn.Embedding(V, D).cuda(), nn.Sequential(*[Block(D, 8) for _ in range(6)]).cuda(), nn.Linear(D, V).cuda()
params = [*emb.parameters(), *body.parameters(), *head.parameters()]; opt = torch.optim.AdamW(params, lr=1e-4, fused=True)
for t in (257, 129, 385, 257):
    x = torch.randint(0, V, (8, t), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = F.cross_entropy(head(body(emb(x[:, :-1]))).flatten(0, 1), x[:, 1:].flatten())
    loss.backward(); nn.utils.clip_grad_norm_(params, 1.0); opt.step(); opt.zero_grad()
