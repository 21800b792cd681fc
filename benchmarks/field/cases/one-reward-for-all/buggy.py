import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
from torch import nn

steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
VOCAB, GROUP, PROMPTS, LENGTH = 20, 4, 4, 10


class Policy(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


@torch.no_grad()
def generate(policy, tokens):
    for _ in range(LENGTH):
        tokens = torch.cat([tokens, torch.multinomial(policy(tokens)[:, -1].softmax(-1), 1)], dim=1)
    return tokens


def even_reward(completions):
    scores = [sum(t % 2 == 0 for t in c) / len(c) for c in completions]
    return [sum(scores) / len(scores)]


policy = Policy()
optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0)
for step in range(steps):
    prompts = torch.randint(VOCAB, (PROMPTS, 2)).repeat_interleave(GROUP, dim=0)
    tokens = generate(policy, prompts)
    completions = tokens[:, 2:].tolist()
    per_function = torch.zeros(len(completions), 1)
    per_function[:, 0] = torch.tensor(even_reward(completions), dtype=torch.float32)
    rewards = per_function.sum(1)
    groups = rewards.view(-1, GROUP)
    advantages = (
        (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    ).view(-1)
    logp = policy(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)[:, 1:]
    loss = -((logp - logp.detach()).exp() * advantages[:, None]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step} reward {rewards.mean().item():.3f} loss {loss.item():.5f}")
