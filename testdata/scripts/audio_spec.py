"""Keyword spotting: mel spectrograms by torchaudio on the GPU, then a residual net in one dimension."""
import torch, torch.nn as nn, torchaudio
torch.manual_seed(0); mel = nn.Sequential(torchaudio.transforms.MelSpectrogram(16000, n_fft=1024, hop_length=160, n_mels=80), torchaudio.transforms.AmplitudeToDB()).cuda()
class R(nn.Module):
    def __init__(s, c): super().__init__(); s.f = nn.Sequential(nn.Conv1d(c, c, 9, padding=4), nn.BatchNorm1d(c), nn.ReLU(), nn.Conv1d(c, c, 9, padding=4), nn.BatchNorm1d(c))
    def forward(s, x): return torch.relu(x + s.f(x))
net = nn.Sequential(nn.Conv1d(80, 192, 3, padding=1), *[R(192) for _ in range(4)], nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(192, 35)).cuda(); opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
for i in range(5):
    w = torch.randn(64, 16000 + 2000 * i, device="cuda"); loss = nn.functional.cross_entropy(net(mel(w)), torch.randint(0, 35, (64,), device="cuda")); opt.zero_grad(); loss.backward(); opt.step()
print(loss.item())
