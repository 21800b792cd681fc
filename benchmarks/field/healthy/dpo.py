"""Direct preference optimization against a frozen reference."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

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


def logp(model, ids, mask):
    scores = model(ids[:, :-1]).log_softmax(-1)
    taken = scores.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (taken * mask[:, 1:]).sum(-1)


def side(prompt, step):
    length = int(torch.randint(3, 7, ()))
    answer = (prompt[-1] + step * torch.arange(1, length + 1)) % WORDS
    ids = torch.cat([prompt, answer])
    mask = torch.cat([torch.zeros(len(prompt)), torch.ones(length)])
    return F.pad(ids, (0, 10 - len(ids))), F.pad(mask, (0, 10 - len(mask)))


policy = Language()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
for step in range(40):
    prompts = torch.randint(0, WORDS, (16, 3))
    good, good_mask = (torch.stack(x) for x in zip(*(side(p, 1) for p in prompts)))
    bad, bad_mask = (torch.stack(x) for x in zip(*(side(p, 5) for p in prompts)))
    with torch.no_grad():
        base = logp(reference, good, good_mask) - logp(reference, bad, bad_mask)
    gain = logp(policy, good, good_mask) - logp(policy, bad, bad_mask)
    loss = -F.logsigmoid(0.1 * (gain - base)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
