"""A bidirectional GRU tagger over packed sequences, and an LSTM decoder."""
import torch, torch.nn as nn
torch.manual_seed(0); emb, gru, dec, head = nn.Embedding(20000, 256).cuda(), nn.GRU(256, 384, 2, batch_first=True, bidirectional=True, dropout=0.2).cuda(), nn.LSTM(768, 512, 1, batch_first=True).cuda(), nn.Linear(512, 50).cuda()
params = [p for m in (emb, gru, dec, head) for p in m.parameters()]; opt = torch.optim.Adam(params, lr=1e-3)
for i in range(6):
    n = 48; lens = torch.randint(20, 90 + 10 * i, (n,)).sort(descending=True).values; x = torch.randint(0, 20000, (n, int(lens[0])), device="cuda")
    h, _ = gru(nn.utils.rnn.pack_padded_sequence(emb(x), lens, batch_first=True)); h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True)
    o, _ = dec(h); loss = nn.functional.cross_entropy(head(o).flatten(0, 1), torch.randint(0, 50, (n * int(lens[0]),), device="cuda"))
    opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(params, 1.0); opt.step()
print(loss.item())
