import sys

import torch

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
torch.manual_seed(seed)
torch.set_num_threads(1)
from torch import nn

steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
VOCAB, PROMPTS, GROUP, LENGTH = 24, 4, 6, 8


class Policy(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


@torch.no_grad()
def generate(policy, prompts):
    tokens = prompts
    for _ in range(LENGTH):
        logits = policy(tokens)[:, -1]
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], dim=1)
    return tokens


def log_probs(policy, tokens, start):
    logits = policy(tokens[:, :-1]).log_softmax(-1)
    return logits.gather(-1, tokens[:, 1:, None]).squeeze(-1)[:, start - 1 :]


def reward(tokens, start):
    wanted = tokens[:, :1]
    return (tokens[:, start:] % 4 == wanted % 4).float().mean(1)


policy = Policy()
reference = Policy()
reference.load_state_dict(policy.state_dict())
reference.eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
for step in range(steps):
    prompts = torch.randint(VOCAB, (PROMPTS, 3))
    batch = prompts.repeat(GROUP, 1)
    tokens = generate(policy, batch)
    rewards = reward(tokens, 3)
    mean = rewards.view(-1, GROUP).mean(dim=1)
    std = rewards.view(-1, GROUP).std(dim=1)
    advantages = (rewards - mean.repeat_interleave(GROUP)) / (std.repeat_interleave(GROUP) + 1e-4)
    new = log_probs(policy, tokens, 3)
    with torch.no_grad():
        old = log_probs(reference, tokens, 3)
    kl = torch.exp(old - new) - (old - new) - 1
    loss = -(torch.exp(new - new.detach()) * advantages[:, None] - 0.02 * kl).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step} reward {rewards.mean().item():.3f}")
