"""REINFORCE on a walk along a line: no data loader, episodes of unlike length, one step each."""

import torch
from torch import nn

LENGTH = 8


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    baseline = 0.0
    for episode in range(20):
        place, rewards, log_probs = LENGTH // 2, [], []
        while 0 < place < LENGTH and len(rewards) < 12:
            observed = torch.tensor([place / LENGTH, 1.0])
            choice = torch.distributions.Categorical(logits=policy(observed))
            action = choice.sample()
            log_probs.append(choice.log_prob(action))
            place += 1 if action.item() else -1
            rewards.append(1.0 if place == LENGTH else -0.1)
        total = sum(rewards)
        baseline = 0.9 * baseline + 0.1 * total
        loss = -torch.stack(log_probs).sum() * (total - baseline)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if episode % 5 == 0:
            print(episode, round(total, 2))


main()
