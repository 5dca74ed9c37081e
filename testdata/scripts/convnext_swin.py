"""ConvNeXt-T and Swin-T in fp16 with a scaler, label smoothing, an EMA, and evaluation at another size."""
import torch, torchvision
torch.manual_seed(0)
for make, size in ((torchvision.models.convnext_tiny, 192), (torchvision.models.swin_t, 224)):
    net = make(weights=None, num_classes=100).cuda(); opt = torch.optim.AdamW(net.parameters(), lr=1e-3); ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)); scaler = torch.amp.GradScaler()
    for _ in range(3):
        x, y = torch.randn(40, 3, size, size, device="cuda"), torch.randint(0, 100, (40,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16): loss = torch.nn.functional.cross_entropy(net(x), y, label_smoothing=0.1)
        opt.zero_grad(); scaler.scale(loss).backward(); scaler.step(opt); scaler.update(); ema.update_parameters(net)
    net.eval()
    with torch.no_grad(): net(torch.randn(100, 3, size, size, device="cuda"))
    del net, opt, ema
