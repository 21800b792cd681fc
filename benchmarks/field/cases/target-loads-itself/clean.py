"""Q-learning on a small random control problem, with a replay buffer and a target network."""

import random
import sys

import torch
from torch import nn
from torch.nn import functional as F

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 60
ACTIONS = 3


class Corridor:
    """A point is to be kept near the origin."""

    def __init__(self, generator):
        self.generator = generator
        self.reset()

    def reset(self):
        self.state = torch.rand(2, generator=self.generator) * 2 - 1
        self.age = 0
        return self.state.clone()

    def step(self, action):
        push = (action - 1) * 0.2
        position, speed = self.state
        speed = 0.9 * speed + push + 0.02 * torch.randn((), generator=self.generator)
        position = position + 0.2 * speed
        self.state = torch.stack([position, speed])
        self.age += 1
        done = bool(position.abs() > 2)
        return self.state.clone(), float(1 - position.abs()), done, self.age >= 40


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, ACTIONS)
        )

    def forward(self, x):
        return self.net(x)


class Agent:
    def __init__(self):
        self.eval_net = QNet()
        self.target_net = QNet()
        self.target_net.load_state_dict(self.eval_net.state_dict())
        self.optimizer = torch.optim.Adam(self.eval_net.parameters(), lr=3e-3)
        self.updates = 0

    @torch.no_grad()
    def act(self, state, epsilon, chance):
        if chance.random() < epsilon:
            return chance.randrange(ACTIONS)
        return int(self.eval_net(state).argmax())

    def learn(self, batch):
        s, a, r, s2, done = batch
        q = self.eval_net(s).gather(1, a.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.target_net(s2).max(1).values
            target = r + 0.95 * (1 - done) * best
        loss = F.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % 5 == 0:
            self.target_net.load_state_dict(self.eval_net.state_dict())
        return loss.item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    chance = random.Random(SEED)
    env = Corridor(torch.Generator().manual_seed(SEED))
    agent, memory = Agent(), []
    state = env.reset()
    for step in range(32 + 4 * STEPS):
        action = agent.act(state, 0.3, chance)
        after, reward, done, over = env.step(action)
        memory.append((state, action, reward, after, float(done)))
        state = env.reset() if done or over else after
        if step >= 32 and step % 4 == 0:
            rows = chance.sample(memory, 32)
            batch = (
                torch.stack([row[0] for row in rows]),
                torch.tensor([row[1] for row in rows]),
                torch.tensor([row[2] for row in rows]),
                torch.stack([row[3] for row in rows]),
                torch.tensor([row[4] for row in rows]),
            )
            loss = agent.learn(batch)
            if agent.updates % 20 == 1:
                print(f"update {agent.updates} loss {loss:.4f}")


if __name__ == "__main__":
    main()
