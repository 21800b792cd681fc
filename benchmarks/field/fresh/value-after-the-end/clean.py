import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
ENVS, STEPS, LIMIT, GAMMA, LAMBDA = 16, 32, 20, 0.97, 0.95


class Walks:
    """Points on a line: a reward for each step on it, the end beyond it."""

    def __init__(self):
        self.place = torch.zeros(ENVS)
        self.speed = 0.1 * torch.randn(ENVS)
        self.age = torch.zeros(ENVS)

    def see(self):
        return torch.stack([self.place, self.speed], 1)

    def step(self, action):
        self.speed = self.speed + 0.1 * (2.0 * action - 1) + 0.05 * torch.randn(ENVS)
        self.place = self.place + self.speed
        self.age = self.age + 1
        terminated = self.place.abs() > 1
        truncated = (self.age >= LIMIT) & ~terminated
        after = self.see()
        over = terminated | truncated
        self.place = torch.where(over, torch.zeros(ENVS), self.place)
        self.speed = torch.where(over, 0.1 * torch.randn(ENVS), self.speed)
        self.age = torch.where(over, torch.zeros(ENVS), self.age)
        return after, torch.ones(ENVS), terminated, truncated


actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
walks = Walks()
for round_ in range(6):
    seen, actions, logps, rewards, values, nexts, ends, overs = ([] for _ in range(8))
    with torch.no_grad():
        for _ in range(STEPS):
            state = walks.see()
            choice = Categorical(logits=actor(state))
            action = choice.sample()
            after, reward, terminated, truncated = walks.step(action)
            seen.append(state), actions.append(action), logps.append(choice.log_prob(action))
            rewards.append(reward), values.append(critic(state).squeeze(1))
            nexts.append(critic(after).squeeze(1))
            ends.append(terminated.float()), overs.append((terminated | truncated).float())
        advantage, advantages = torch.zeros(ENVS), []
        for t in reversed(range(STEPS)):
            delta = rewards[t] + GAMMA * nexts[t] * (1 - ends[t]) - values[t]
            advantage = delta + GAMMA * LAMBDA * (1 - overs[t]) * advantage
            advantages.append(advantage)
        advantages = torch.stack(advantages[::-1]).flatten()
    returns = advantages + torch.stack(values).flatten()
    seen, actions, logps = torch.cat(seen), torch.cat(actions), torch.cat(logps)
    for _ in range(2):
        for index in torch.randperm(len(seen)).split(128):
            choice = Categorical(logits=actor(seen[index]))
            ratio = torch.exp(choice.log_prob(actions[index]) - logps[index])
            gain = advantages[index]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            value_loss = F.mse_loss(critic(seen[index]).squeeze(1), returns[index])
            loss = policy_loss + 0.5 * value_loss - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            optimizer.step()
    print(f"round {round_}: value loss {value_loss.item():.4f} mean return {returns.mean():.3f}")
