import sys

import torch
from torch import nn
from torch.nn import functional as F

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
torch.manual_seed(seed)
torch.set_num_threads(1)


class Dueling(nn.Module):
    def __init__(self, states=6, actions=4, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(states, hidden), nn.ReLU())
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, actions)

    def forward(self, x):
        h = self.body(x)
        value, advantage = self.value(h), self.advantage(h)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


net, target = Dueling(), Dueling()
target.load_state_dict(net.state_dict())
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(steps):
    s, s2 = torch.randn(32, 6), torch.randn(32, 6)
    a = torch.randint(4, (32,))
    r = (s[:, :4].gather(1, a[:, None]).squeeze(1) > 0).float()
    with torch.no_grad():
        y = r + 0.9 * target(s2).max(1).values
    q = net(s).gather(1, a[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(q, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        target.load_state_dict(net.state_dict())
        with torch.no_grad():
            net(torch.randn(1, 6)).argmax()
        print(f"step {step}: loss {loss.item():.3f}")
