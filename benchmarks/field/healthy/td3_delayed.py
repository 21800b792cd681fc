"""TD3: smoothed targets, delayed updates of the policy and of all averages."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

STATE, ACTION = 3, 2
mix = 0.3 * torch.randn(ACTION, STATE)
actor = nn.Sequential(nn.Linear(STATE, 32), nn.ReLU(), nn.Linear(32, ACTION), nn.Tanh())
critics = nn.ModuleList(
    nn.Sequential(nn.Linear(STATE + ACTION, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in range(2)
)
slow_actor, slow_critics = copy.deepcopy(actor), copy.deepcopy(critics)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critics.parameters(), lr=1e-3)
s = torch.randn(400, STATE)
a = 2 * torch.rand(400, ACTION) - 1
s2 = 0.9 * s + a @ mix
r = -s2.norm(dim=1, keepdim=True)
for step in range(50):
    index = torch.randint(0, 400, (64,))
    with torch.no_grad():
        noise = (0.2 * torch.randn(64, ACTION)).clamp(-0.5, 0.5)
        a2 = (slow_actor(s2[index]) + noise).clamp(-1, 1)
        q2 = torch.min(*(c(torch.cat([s2[index], a2], 1)) for c in slow_critics))
        goal = r[index] + 0.95 * q2
    both = torch.cat([s[index], a[index]], 1)
    critic_loss = sum(F.mse_loss(c(both), goal) for c in critics)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    if step % 2:
        actor_loss = -critics[0](torch.cat([s[index], actor(s[index])], 1)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        with torch.no_grad():
            for slow, fast in ((slow_actor, actor), (slow_critics, critics)):
                for kept, new in zip(slow.parameters(), fast.parameters()):
                    kept.lerp_(new, 0.01)
    if step % 10 == 9:
        print(f"step {step}: critic {critic_loss.item():.3f}")
