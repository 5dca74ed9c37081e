"""torch.compile of a small net, forward and backward."""
import torch, torch.nn as nn
torch.manual_seed(0); net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)).cuda(); opt = torch.optim.AdamW(net.parameters()); fast = torch.compile(net)
for _ in range(3): fast(torch.randn(1024, 512, device="cuda")).pow(2).mean().backward(); opt.step(); opt.zero_grad()
