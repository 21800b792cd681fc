import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
HISTORY, AHEAD, TARGET = 20, 8, 2


def series(count):
    t = torch.arange(HISTORY + AHEAD).float()
    phase, speed = 6.3 * torch.rand(count, 1), 0.2 + 0.3 * torch.rand(count, 1)
    value = torch.sin(phase + speed * t) + 0.3 * torch.randn(count, len(t)).cumsum(1)
    week = torch.sin(t * 6.283 / 7).expand(count, -1)
    month = torch.cos(t * 6.283 / 30).expand(count, -1)
    return torch.stack([week, month, value], -1)


class Forecaster(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.encode = nn.LSTM(3, width, batch_first=True)
        self.decode = nn.LSTM(3, width, batch_first=True)
        self.read = nn.Linear(width, 1)
        self.target = TARGET

    def lagged(self, x):
        inputs = x[:, HISTORY:].clone()
        inputs[..., self.target] = x[:, HISTORY - 1 : -1, TARGET]
        return inputs

    def forward(self, x):
        _, state = self.encode(x[:, :HISTORY])
        decoded, _ = self.decode(self.lagged(x), state)
        return self.read(decoded).squeeze(-1)


model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(40):
    x = series(32)
    loss = F.mse_loss(model(x), x[:, HISTORY:, TARGET])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
