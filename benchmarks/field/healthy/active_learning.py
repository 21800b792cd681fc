"""Active learning: the least certain samples join the training set, the model begins again."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)

known = torch.randperm(len(images))[:100]
for round_ in range(3):
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(6):
        for index in known[torch.randperm(len(known))].split(25):
            loss = F.cross_entropy(model(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        chance = model(images).softmax(1)
    print(
        f"round {round_}: {len(known)} labels, accuracy {(chance.argmax(1) == labels).float().mean():.3f}"
    )
    entropy = -(chance * chance.clamp(min=1e-9).log()).sum(1)
    entropy[known] = -1
    known = torch.cat([known, entropy.topk(50).indices])
