"""A convolutional VAE on images of 96, then a small three-dimensional U-Net on volumes, float32."""
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
enc = nn.Sequential(nn.Conv2d(3, 48, 4, 2, 1), nn.ReLU(), nn.Conv2d(48, 96, 4, 2, 1), nn.ReLU(), nn.Conv2d(96, 192, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(192 * 144, 256)).cuda()
dec = nn.Sequential(nn.Linear(128, 192 * 144), nn.Unflatten(1, (192, 12, 12)), nn.ConvTranspose2d(192, 96, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(96, 48, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(48, 3, 4, 2, 1)).cuda()
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()])
for _ in range(4):
    x = torch.rand(80, 3, 96, 96, device="cuda"); m, s = enc(x).chunk(2, 1); z = m + (s / 2).exp() * torch.randn_like(m); loss = F.mse_loss(dec(z), x) - 0.001 * (1 + s - m.square() - s.exp()).mean(); opt.zero_grad(); loss.backward(); opt.step()
def c(i, o): return nn.Sequential(nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o), nn.LeakyReLU(0.1))
a, b, m, u, o = c(1, 24).cuda(), c(24, 48).cuda(), c(48, 96).cuda(), nn.ConvTranspose3d(96, 48, 2, 2).cuda(), nn.Sequential(c(96, 24), nn.Conv3d(24, 4, 1)).cuda(); opt = torch.optim.SGD([p for q in (a, b, m, u, o) for p in q.parameters()], lr=0.01)
for _ in range(3):
    x = torch.randn(2, 1, 64, 64, 48, device="cuda"); h = b(F.max_pool3d(a(x), 2)); y = o(torch.cat([u(m(F.max_pool3d(h, 2))), h], 1)); loss = F.cross_entropy(y, torch.randint(0, 4, y.shape[:1] + y.shape[2:], device="cuda")); opt.zero_grad(); loss.backward(); opt.step()
