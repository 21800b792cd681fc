"""Sentence pairs: does the second sentence follow from the first? BiLSTM with mean pooling."""

import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 36
WORDS = 200


def make_pairs(n, g):
    rows = []
    for _ in range(n):
        a = torch.randint(2, WORDS, (int(torch.randint(4, 30, (1,), generator=g)),), generator=g)
        label = int(torch.randint(0, 3, (1,), generator=g))
        k = int(torch.randint(3, 12, (1,), generator=g))
        b = torch.randint(2, WORDS, (k,), generator=g)
        if label == 0:
            b = a[torch.randint(0, len(a), (k,), generator=g)]
        elif label == 1:
            b = WORDS + 1 - a[torch.randint(0, len(a), (k,), generator=g)]
        rows.append((a, b, label))
    return rows


def collate(rows):
    a, b, y = zip(*rows)
    return (
        pad_sequence(a, batch_first=True),
        torch.tensor([len(s) for s in a]),
        pad_sequence(b, batch_first=True),
        torch.tensor([len(s) for s in b]),
        torch.tensor(y),
    )


class SentenceEncoder(nn.Module):
    def __init__(self, dim=48, hidden=48):
        super().__init__()
        self.words = nn.Embedding(WORDS + 1, dim, padding_idx=0)
        self.rnn = nn.LSTM(dim, hidden, bidirectional=True, batch_first=True)
        self.drop = nn.Dropout(0.1)

    def forward(self, ids, lengths):
        sent_len, order = lengths.sort(descending=True)
        back = order.argsort()
        x = self.drop(self.words(ids.index_select(0, order)))
        packed, _ = self.rnn(pack_padded_sequence(x, sent_len, batch_first=True))
        out, _ = pad_packed_sequence(packed, batch_first=True)
        out = out.index_select(0, back)
        total = out.sum(1)
        emb = total / sent_len.unsqueeze(1)
        return emb


class NLI(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = SentenceEncoder()
        self.head = nn.Sequential(nn.Linear(4 * 96, 96), nn.Tanh(), nn.Linear(96, 3))

    def forward(self, a, la, b, lb):
        u, v = self.encoder(a, la), self.encoder(b, lb)
        return self.head(torch.cat([u, v, (u - v).abs(), u * v], 1))


def main():
    torch.manual_seed(SEED)
    g = torch.Generator().manual_seed(100 + SEED)
    train = DataLoader(
        make_pairs(2000, g), batch_size=32, shuffle=True, collate_fn=collate, drop_last=True
    )
    dev = DataLoader(make_pairs(256, g), batch_size=64, collate_fn=collate)
    model = NLI()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    best, step = 0.0, 0
    while step < STEPS:
        model.train()
        for a, la, b, lb, y in train:
            loss = nn.functional.cross_entropy(model(a, la, b, lb), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            step += 1
            if step % 20 == 0 or step == STEPS:
                model.eval()
                with torch.no_grad():
                    hits = sum(
                        (model(a, la, b, lb).argmax(1) == y).sum().item() for a, la, b, lb, y in dev
                    )
                best = max(best, hits / 256)
                print(f"step {step} loss {loss.item():.4f} dev {hits / 256:.3f} best {best:.3f}")
                model.train()
            if step == STEPS:
                break


if __name__ == "__main__":
    main()
