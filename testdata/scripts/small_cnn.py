"""A small convolutional net with batch norm and residuals, in single precision: SGD with momentum, then a pass without gradients."""
import torch, torch.nn as nn, torch.nn.functional as F
class Block(nn.Module):
    def __init__(self, i, o, s):
        super().__init__(); self.c1, self.c2 = nn.Conv2d(i, o, 3, s, 1, bias=False), nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.b1, self.b2, self.skip = nn.BatchNorm2d(o), nn.BatchNorm2d(o), nn.Conv2d(i, o, 1, s) if s > 1 else nn.Identity()
    def forward(self, x): return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.skip(x))
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), Block(64, 64, 1), Block(64, 128, 2), Block(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    x, y = torch.randn(64, 3, 32, 32, device="cuda"), torch.randint(0, 100, (64,), device="cuda")
    F.cross_entropy(net(x), y).backward(); opt.step(); opt.zero_grad()
with torch.no_grad(): net.eval(); print(net(torch.randn(256, 3, 32, 32, device="cuda")).argmax(1).shape)
