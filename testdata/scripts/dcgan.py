"""DCGAN: transposed convolutions, two optimizers, cuDNN's benchmark off."""
import torch, torch.nn as nn
def up(i, o, k=4, s=2, p=1): return [nn.ConvTranspose2d(i, o, k, s, p, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]
def down(i, o): return [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True)]
torch.manual_seed(0); g = nn.Sequential(*up(100, 512, 4, 1, 0), *up(512, 256), *up(256, 128), *up(128, 64), nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()).cuda()
d = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, True), *down(64, 128), *down(128, 256), *down(256, 512), nn.Conv2d(512, 1, 4, 1, 0)).cuda()
og, od = torch.optim.Adam(g.parameters(), 2e-4, (0.5, 0.999)), torch.optim.Adam(d.parameters(), 2e-4, (0.5, 0.999)); bce = nn.BCEWithLogitsLoss()
for _ in range(6):
    real = torch.randn(96, 3, 64, 64, device="cuda"); z = torch.randn(96, 100, 1, 1, device="cuda"); fake = g(z)
    od.zero_grad(); a, b = d(real), d(fake.detach()); ld = bce(a, torch.ones_like(a)) + bce(b, torch.zeros_like(b)); ld.backward(); od.step()
    og.zero_grad(); c = d(fake); lg = bce(c, torch.ones_like(c)); lg.backward(); og.step()
print(ld.item(), lg.item())
