"""A convolutional classifier of padded texts; padding takes part by design."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS = 50


def texts(count):
    lengths = torch.randint(5, 15, (count,))
    ids = torch.randint(1, WORDS, (count, 14))
    ids = ids.masked_fill(torch.arange(14)[None] >= lengths[:, None], 0)
    return ids, ((ids % 7 == 0) & (ids > 0)).any(1).long()


class TextCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(24, 16, size, padding=1) for size in (2, 3, 4)])
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(48, 2)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        pooled = [F.relu(conv(x)).amax(2) for conv in self.convs]
        return self.head(self.drop(torch.cat(pooled, 1)))


train, valid = texts(512), texts(128)
model = TextCNN()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    model.train()
    for index in torch.randperm(512).split(32):
        loss = F.cross_entropy(model(train[0][index]), train[1][index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(valid[0]).argmax(1) == valid[1]).float().mean()
    print(f"epoch {epoch}: loss {loss.item():.4f} accuracy {right:.3f}")
