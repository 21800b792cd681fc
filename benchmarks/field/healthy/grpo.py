"""GRPO: groups of answers, normalized rewards, clipped ratios, a penalty to the reference."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS, WIDTH = 24, 32


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.read = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return self.head(self.read(self.embed(ids))[0])


GROUP, LENGTH = 6, 5


def sample(model, prompts):
    ids = prompts
    with torch.no_grad():
        for _ in range(LENGTH):
            chance = model(ids)[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(chance, 1)], 1)
    return ids


def logps(model, ids):
    scores = model(ids[:, :-1]).log_softmax(-1)
    return scores.gather(-1, ids[:, 1:, None]).squeeze(-1)[:, -LENGTH:]


policy = Language()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
for step in range(15):
    prompts = torch.randint(0, WORDS, (8, 2)).repeat_interleave(GROUP, 0)
    ids = sample(policy, prompts)
    rewards = (ids[:, -LENGTH:] % 2 == 0).float().mean(1).view(-1, GROUP)
    gain = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    gain = gain.flatten()[:, None]
    with torch.no_grad():
        old, base = logps(policy, ids), logps(reference, ids)
    for _ in range(2):
        new = logps(policy, ids)
        ratio = (new - old).exp()
        kl = (base - new).exp() - (base - new) - 1
        loss = (-torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain) + 0.04 * kl).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    if step % 5 == 4:
        print(f"step {step}: reward {rewards.mean():.3f} loss {loss.item():.4f}")
