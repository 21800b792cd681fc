"""Soft actor-critic: three optimizers, two of them at every other step, and averaged critics."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 32


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


torch.manual_seed(0)
torch.set_num_threads(1)
actor = network(4, 4)
critics = nn.ModuleList([network(6, 1), network(6, 1)])
averaged = copy.deepcopy(critics).requires_grad_(False)
log_alpha = torch.zeros(1, requires_grad=True)
of_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
of_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
of_alpha = torch.optim.Adam([log_alpha], lr=1e-3)


def act(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, log_std = actor(states).chunk(2, -1)
    chosen = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    sample = chosen.rsample()
    action = sample.tanh()
    log_prob = chosen.log_prob(sample) - torch.log(1 - action**2 + 1e-6)
    return action, log_prob.sum(-1, keepdim=True)


def least(which: nn.ModuleList, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    both = torch.cat([states, actions], 1)
    return torch.min(which[0](both), which[1](both))


memory = []
state = torch.randn(4)
for step in range(60):
    with torch.no_grad():
        action, _ = act(state[None])
    after = 0.9 * state + 0.1 * torch.cat([action[0], action[0]]) + 0.05 * torch.randn(4)
    memory.append((state, action[0], -(after**2).sum(), after))
    state = after
    if len(memory) < BATCH:
        continue
    chosen = [memory[i] for i in torch.randint(0, len(memory), (BATCH,))]
    states, actions, rewards, others = (torch.stack(column) for column in zip(*chosen))
    with torch.no_grad():
        following, log_prob = act(others)
        value = least(averaged, others, following) - log_alpha.exp() * log_prob
        target = rewards[:, None] + 0.99 * value
    both = torch.cat([states, actions], 1)
    critic_loss = sum(F.mse_loss(critic(both), target) for critic in critics)
    of_critics.zero_grad()
    critic_loss.backward()
    of_critics.step()
    if step % 2 == 0:
        action, log_prob = act(states)
        actor_loss = (log_alpha.exp().detach() * log_prob - least(critics, states, action)).mean()
        of_actor.zero_grad()
        actor_loss.backward()
        of_actor.step()
        alpha_loss = -(log_alpha * (log_prob.detach() - 2)).mean()
        of_alpha.zero_grad()
        alpha_loss.backward()
        of_alpha.step()
    with torch.no_grad():
        for old, new in zip(averaged.parameters(), critics.parameters()):
            old.lerp_(new, 0.005)
print(round(critic_loss.item(), 3))
