"""A policy that guesses digits, trained with clipped ratios."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
data = TensorDataset(images[:768], labels[:768])
loader = DataLoader(data, batch_size=64, shuffle=True)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.head(self.body(x)), dim=-1)


def batched_forward_pass(policy: Policy, x: torch.Tensor) -> torch.Tensor:
    return policy(x)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for x, y in loader:
    policy.eval()
    with torch.no_grad():
        old = batched_forward_pass(policy, x)
        action = torch.distributions.Categorical(logits=old).sample()
    policy.train()
    reward = (action == y).float()
    advantage = reward - reward.mean()
    taken = action[:, None]
    for _ in range(2):
        optimizer.zero_grad()
        ratio = (batched_forward_pass(policy, x) - old).gather(1, taken).exp()[:, 0]
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        loss.backward()
        optimizer.step()
print(round(reward.mean().item(), 3))
