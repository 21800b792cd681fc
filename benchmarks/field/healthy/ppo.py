"""PPO with clipped ratios and generalized advantages on a point that seeks the origin."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

from torch.distributions import Normal

ENVS, STEPS = 16, 24
actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
log_std = nn.Parameter(torch.zeros(2))
parameters = [*actor.parameters(), *critic.parameters(), log_std]
optimizer = torch.optim.Adam(parameters, lr=3e-3, eps=1e-5)
place = 2 * torch.randn(ENVS, 2)
for update in range(5):
    states, actions, logps, rewards, dones, values = [], [], [], [], [], []
    with torch.no_grad():
        for _ in range(STEPS):
            policy = Normal(actor(place), log_std.exp())
            action = policy.sample()
            states.append(place), actions.append(action)
            logps.append(policy.log_prob(action).sum(-1)), values.append(critic(place).squeeze(-1))
            place = place + 0.2 * action.clamp(-1, 1)
            rewards.append(-place.norm(dim=-1))
            over = (place.norm(dim=-1) < 0.2) | (place.norm(dim=-1) > 6)
            dones.append(over.float())
            place = torch.where(over[:, None], 2 * torch.randn(ENVS, 2), place)
        after, advantage, advantages = critic(place).squeeze(-1), torch.zeros(ENVS), []
        for t in reversed(range(STEPS)):
            delta = rewards[t] + 0.95 * after * (1 - dones[t]) - values[t]
            advantage = delta + 0.95 * 0.95 * (1 - dones[t]) * advantage
            advantages.insert(0, advantage)
            after = values[t]
    advantages = torch.cat(advantages)
    returns = advantages + torch.cat(values)
    states, actions, logps = torch.cat(states), torch.cat(actions), torch.cat(logps)
    for _ in range(3):
        for index in torch.randperm(len(states)).split(96):
            policy = Normal(actor(states[index]), log_std.exp())
            ratio = (policy.log_prob(actions[index]).sum(-1) - logps[index]).exp()
            gain = advantages[index]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            value_loss = F.mse_loss(critic(states[index]).squeeze(-1), returns[index])
            entropy = policy.entropy().sum(-1).mean()
            loss = -surrogate.mean() + 0.5 * value_loss - 0.01 * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    print(
        f"update {update}: reward {torch.stack(rewards).mean():.3f} value {value_loss.item():.3f}"
    )
