"""Two tasks whose weights are learned as uncertainties."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.digit, self.ink = nn.Linear(64, 10), nn.Linear(64, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.body(x)
        return self.digit(h), self.ink(h).squeeze(1)


model = Tasks()
ink = images.mean(1)
ink = (ink - ink.mean()) / ink.std()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(2):
    for index in torch.randperm(len(images)).split(64):
        scores, amount = model(images[index])
        losses = torch.stack(
            [F.cross_entropy(scores, labels[index]), F.mse_loss(amount, ink[index])]
        )
        loss = (losses * (-model.log_var).exp() + model.log_var).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {losses.tolist()}")
