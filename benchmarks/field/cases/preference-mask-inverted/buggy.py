"""Direct preference optimization of a small recurrent token model of speech."""

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 50
IGNORE_ID = -1
BETA = 0.1


class SpeechLM(nn.Module):
    def __init__(self, vocab=40, dim=48):
        super().__init__()
        self.tokens, self.body, self.head = (
            nn.Embedding(vocab, dim),
            nn.GRU(dim, dim, batch_first=True),
            nn.Linear(dim, vocab),
        )

    def forward(self, ids):
        return self.head(self.body(self.tokens(ids))[0])


def make_data(n):
    g = torch.Generator().manual_seed(41 + SEED)
    rows = []
    for _ in range(n):
        text = torch.randint(1, 40, (int(torch.randint(3, 7, (1,), generator=g)),), generator=g)
        good = text.repeat_interleave(2)
        bad = torch.randint(1, 40, (int(torch.randint(6, 14, (1,), generator=g)),), generator=g)
        rows.append((text, good, bad))
    return rows


def side(texts, speech):
    rows, targets = [], []
    for t, s in zip(texts, speech):
        whole = torch.cat([t, s])
        rows.append(whole[:-1])
        target = whole[1:].clone()
        target[: len(t) - 1] = IGNORE_ID
        targets.append(target)
    pad = nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad(targets, batch_first=True, padding_value=IGNORE_ID)


def collate(batch):
    texts, good, bad = zip(*batch)
    return *side(texts, good), *side(texts, bad)


def sequence_logps(model, ids, target):
    mask = target == IGNORE_ID
    logp = (
        model(ids).log_softmax(-1).gather(-1, target.masked_fill(mask, 0).unsqueeze(-1)).squeeze(-1)
    )
    return (logp * mask).mean(-1)


def main():
    torch.manual_seed(SEED)
    model = SpeechLM()
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    loader = DataLoader(
        make_data(600), batch_size=8, shuffle=True, collate_fn=collate, drop_last=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step = 0
    model.train()
    while step < STEPS:
        for good, good_target, bad, bad_target in loader:
            with torch.no_grad():
                r_good = sequence_logps(reference, good, good_target)
                r_bad = sequence_logps(reference, bad, bad_target)
            p_good = sequence_logps(model, good, good_target)
            p_bad = sequence_logps(model, bad, bad_target)
            loss = -F.logsigmoid(BETA * ((p_good - r_good) - (p_bad - r_bad))).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            if step >= STEPS:
                break


if __name__ == "__main__":
    main()
