"""Inference with EfficientNet-B0 and MobileNetV3, batches that vary, channels last, half precision."""
import torch, torchvision
torch.manual_seed(0)
for make in (torchvision.models.efficientnet_b0, torchvision.models.mobilenet_v3_large):
    net = make(weights=None).cuda().half().eval().to(memory_format=torch.channels_last)
    with torch.inference_mode():
        for n in (1, 7, 32, 12, 64, 3): y = net(torch.randn(n, 3, 224, 224, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)).argmax(1).tolist()
print(len(y))
