import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Spans(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Embedding(40, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.marginal = nn.Linear(width, 1)

    def forward(self, ids):
        h, _ = self.read(self.embed(ids))
        pairs = self.left(h) @ self.right(h).transpose(1, 2)
        return 8 * pairs, self.marginal(h).squeeze(-1)


def consistency_loss(pair_logits, marginal_logits):
    probabilities = pair_logits.sigmoid()
    probabilities = probabilities.float()
    log_survival = torch.log1p(-probabilities.clamp(max=1.0 - 1e-6)).sum(2)
    return F.mse_loss(1 - torch.exp(log_survival), marginal_logits.sigmoid().float())


model = Spans()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(40):
    ids = torch.randint(0, 40, (8, 9))
    truth = (ids[:, :, None] % 7 == ids[:, None] % 7).float()
    with torch.autocast("cpu", torch.bfloat16):
        pair_logits, marginal_logits = model(ids)
    loss = F.binary_cross_entropy_with_logits(pair_logits.float(), truth)
    loss = loss + 0.1 * consistency_loss(pair_logits, marginal_logits)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
