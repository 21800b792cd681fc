"""DQN with epsilon-greedy play, a replay memory and a target that is copied now and then."""

import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

random.seed(0)
SIZE = 6


def network():
    return nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU(), nn.Linear(32, 2))


online, target = network(), network()
target.load_state_dict(online.state_dict())
target.eval()
optimizer = torch.optim.RMSprop(online.parameters(), lr=1e-3)
memory = deque(maxlen=500)
place, age, steps = 2, 0, 0
for step in range(260):
    state = F.one_hot(torch.tensor(place), SIZE).float()
    if random.random() < max(0.1, 1 - step / 150):
        action = random.randrange(2)
    else:
        with torch.no_grad():
            action = online(state).argmax().item()
    place, age = min(max(place + 2 * action - 1, 0), SIZE - 1), age + 1
    reward, done = float(place == SIZE - 1), place == SIZE - 1
    after = F.one_hot(torch.tensor(place), SIZE).float()
    memory.append((state, action, reward, after, float(done)))
    if done or age > 30:
        place, age = random.randrange(SIZE - 1), 0
    if len(memory) < 64 or step % 2:
        continue
    s, a, r, s2, d = zip(*random.sample(list(memory), 32))
    s, s2, a = torch.stack(s), torch.stack(s2), torch.tensor(a)
    with torch.no_grad():
        goal = torch.tensor(r) + 0.9 * target(s2).max(1).values * (1 - torch.tensor(d))
    loss = F.smooth_l1_loss(online(s).gather(1, a[:, None]).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(online.parameters(), 100)
    optimizer.step()
    steps += 1
    if steps % 25 == 0:
        target.load_state_dict(online.state_dict())
        print(f"update {steps}: loss {loss.item():.4f}")
