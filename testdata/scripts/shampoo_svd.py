"""An optimizer of the Shampoo kind: eigenvectors of its statistics; then PCA, a least-squares fit and QR."""
import torch, torch.nn as nn
torch.manual_seed(0); net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda(); st = {p: [torch.zeros(k, k, device="cuda") for k in p.shape] for p in net.parameters() if p.dim() == 2}
def root(m): w, q = torch.linalg.eigh(m + 1e-4 * torch.eye(len(m), device="cuda")); return q @ torch.diag(w.clamp_min(1e-6) ** -0.25) @ q.T
for _ in range(4):
    loss = net(torch.randn(2048, 512, device="cuda")).square().mean(); loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            if p.dim() == 2: st[p][0] += p.grad @ p.grad.T; st[p][1] += p.grad.T @ p.grad; p -= 1e-3 * root(st[p][0]) @ p.grad @ root(st[p][1])
            p.grad = None
x = torch.randn(4000, 300, device="cuda"); u, s, v = torch.linalg.svd(x, full_matrices=False); q, r = torch.linalg.qr(x); sol = torch.linalg.lstsq(x, torch.randn(4000, 8, device="cuda")).solution
inv = torch.linalg.inv(r.T @ r + torch.eye(300, device="cuda")); z = torch.linalg.solve(inv, torch.randn(300, 5, device="cuda")); print(s[0].item(), sol.norm().item(), z.norm().item(), torch.linalg.slogdet(inv)[1].item())
