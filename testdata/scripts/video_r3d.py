"""R3D-18 on clips: three-dimensional convolutions, mixed precision."""
import torch, torchvision
torch.manual_seed(0); net = torchvision.models.video.r3d_18(weights=None, num_classes=50).cuda(); opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
for _ in range(3):
    x, y = torch.randn(6, 3, 16, 112, 112, device="cuda"), torch.randint(0, 50, (6,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = torch.nn.functional.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
