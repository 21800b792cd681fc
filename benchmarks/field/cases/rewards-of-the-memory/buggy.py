import random
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Landmark:
    """Find a target on a small grid; the reward is how much nearer a move came."""

    moves = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def __init__(self, size=12, seed=0):
        self.size, self.rng = size, np.random.default_rng(seed)

    def reset(self):
        self.place, self.target = (
            self.rng.integers(0, self.size, 2),
            self.rng.integers(0, self.size, 2),
        )
        self.clock = 0
        return self.observe()

    def observe(self):
        return ((self.target - self.place) / self.size).astype(np.float32)

    def step(self, action):
        before = np.abs(self.target - self.place).sum()
        self.place = np.clip(self.place + self.moves[action], 0, self.size - 1)
        after = np.abs(self.target - self.place).sum()
        self.clock += 1
        return self.observe(), float(before - after), bool(after == 0 or self.clock >= 25)


class Memory:
    def __init__(self, capacity, state_dim):
        self.capacity = capacity
        self.state = np.zeros((capacity, state_dim), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.over = np.zeros(capacity, bool)
        self.position = self.size = 0

    def append(self, state, action, reward, over):
        i = self.position
        self.state[i], self.action[i], self.reward[i], self.over[i] = state, action, reward, over
        self.position = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, batch):
        i = np.random.randint(0, self.size - 1, batch)
        rows = (
            self.state[i],
            self.action[i],
            self.reward[i],
            self.state[i + 1],
            self.over[i].astype(np.float32),
        )
        return [torch.from_numpy(r) for r in rows]


class QNet(nn.Module):
    def __init__(self, n_in=2, actions=4):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_in, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, actions)
        )

    def forward(self, x):
        return self.net(x)


def evaluate(net, seed, games=6):
    env, total = Landmark(seed=seed), 0.0
    for _ in range(games):
        state, over = env.reset(), False
        while not over:
            with torch.no_grad():
                action = net(torch.from_numpy(state)).argmax().item()
            state, reward, over = env.step(action)
            total += reward
    return total / games


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    frames = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    env = Landmark(seed=seed)
    net, target = QNet(), QNet()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    memory = Memory(2000, 2)
    state, reward, over = env.reset(), 0.0, False
    updates = 0
    for frame in range(frames):
        epsilon = max(0.1, 1 - frame / 350)
        if random.random() < epsilon:
            action = random.randrange(4)
        else:
            with torch.no_grad():
                action = net(torch.from_numpy(state)).argmax().item()
        memory.append(state, action, reward, over)
        state, reward, over = env.step(action)
        if over:
            state = env.reset()
        if frame >= 100 and frame % 5 == 0:
            s, a, r, s2, o = memory.sample(48)
            with torch.no_grad():
                goal = r + 0.9 * (1 - o) * target(s2).max(1).values
            loss = F.smooth_l1_loss(net(s).gather(1, a[:, None]).squeeze(1), goal)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            optimizer.step()
            updates += 1
            if updates % 20 == 0:
                target.load_state_dict(net.state_dict())
                print(f"frame {frame} loss {loss.item():.4f} score {evaluate(net, seed + 9):.3f}")


main()
