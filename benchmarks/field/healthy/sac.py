"""Soft actor-critic: twin critics, averaged targets, a learned temperature, a replay buffer."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

STATE, ACTION = 3, 2


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE, 32), nn.ReLU(), nn.Linear(32, 2 * ACTION))

    def forward(self, state):
        mean, log_std = self.body(state).chunk(2, -1)
        policy = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = policy.rsample()
        action = raw.tanh()
        logp = policy.log_prob(raw) - (1 - action**2 + 1e-6).log()
        return action, logp.sum(-1, keepdim=True)


def critic():
    return nn.Sequential(nn.Linear(STATE + ACTION, 32), nn.ReLU(), nn.Linear(32, 1))


actor, critics = Actor(), nn.ModuleList([critic(), critic()])
targets = copy.deepcopy(critics).requires_grad_(False)
log_alpha = torch.zeros(1, requires_grad=True)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
critic_optimizer = torch.optim.Adam(critics.parameters(), lr=3e-3)
alpha_optimizer = torch.optim.Adam([log_alpha], lr=3e-3)
mix = 0.3 * torch.randn(ACTION, STATE)
memory, state = [], torch.randn(1, STATE)
for step in range(150):
    with torch.no_grad():
        action = actor(state)[0] if step > 50 else 2 * torch.rand(1, ACTION) - 1
    after = 0.9 * state + action @ mix + 0.05 * torch.randn(1, STATE)
    memory.append((state, action, -after.norm(dim=-1, keepdim=True), after))
    state = after if step % 25 else torch.randn(1, STATE)
    if step < 64:
        continue
    chosen = torch.randint(0, len(memory), (32,)).tolist()
    s, a, r, s2 = (torch.cat(column) for column in zip(*(memory[i] for i in chosen)))
    alpha = log_alpha.exp().detach()
    with torch.no_grad():
        a2, logp2 = actor(s2)
        q2 = torch.min(*(t(torch.cat([s2, a2], 1)) for t in targets)) - alpha * logp2
        goal = r + 0.95 * q2
    critic_loss = sum(F.mse_loss(c(torch.cat([s, a], 1)), goal) for c in critics)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    critics.requires_grad_(False)
    new, logp = actor(s)
    q = torch.min(*(c(torch.cat([s, new], 1)) for c in critics))
    actor_loss = (alpha * logp - q).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    critics.requires_grad_(True)
    alpha_loss = -(log_alpha * (logp.detach() - ACTION)).mean()
    alpha_optimizer.zero_grad()
    alpha_loss.backward()
    alpha_optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(targets.parameters(), critics.parameters()):
            slow.lerp_(fast, 0.01)
    if step % 25 == 24:
        print(f"step {step}: critic {critic_loss.item():.3f} actor {actor_loss.item():.3f}")
