"""Translate short token strings with an LSTM encoder and decoder."""

import random
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 0
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 36
VOCAB, PAD, BOS, EOS = 40, 0, 1, 2


def make_pairs(n, g):
    rows = []
    for _ in range(n):
        s = torch.randint(3, VOCAB, (int(torch.randint(3, 9, (1,), generator=g)),), generator=g)
        t = torch.cat([torch.tensor([BOS]), (s - 3 + 7) % (VOCAB - 3) + 3, torch.tensor([EOS])])
        rows.append((s, t))
    return rows


def collate(rows):
    s, t = zip(*rows)
    return (
        pad_sequence(s, batch_first=True),
        torch.tensor([len(x) for x in s]),
        pad_sequence(t, batch_first=True),
    )


class PackedLSTM(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.rnn = nn.LSTM(d_in, d_out, batch_first=True)

    def forward(self, x, lengths):
        lengths, order = lengths.sort(descending=True)
        back = order.argsort()
        out, (h, c) = self.rnn(pack_padded_sequence(x[order], lengths, batch_first=True))
        out, _ = pad_packed_sequence(out, batch_first=True)
        h, c = h[:, back], h[:, back]
        return out[back], (h, c)


class Seq2Seq(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.encoder = PackedLSTM(dim, dim)
        self.decoder = nn.LSTM(dim, dim, batch_first=True)
        self.out = nn.Linear(2 * dim, VOCAB)

    def forward(self, source, lengths, target):
        memory, state = self.encoder(self.embed(source), lengths)
        hidden, _ = self.decoder(self.embed(target), state)
        scores = hidden @ memory.transpose(1, 2) / memory.size(-1) ** 0.5
        blank = torch.arange(memory.size(1))[None, None] >= lengths[:, None, None]
        context = scores.masked_fill(blank, float("-inf")).softmax(-1) @ memory
        return self.out(torch.cat([hidden, context], -1))


def token_loss(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)


def main():
    torch.manual_seed(SEED)
    random.seed(SEED)
    g = torch.Generator().manual_seed(SEED)
    train = DataLoader(
        make_pairs(3000, g), batch_size=48, shuffle=True, collate_fn=collate, drop_last=True
    )
    valid = DataLoader(make_pairs(192, g), batch_size=96, collate_fn=collate)
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
    step = 0
    while step < STEPS:
        model.train()
        for source, lengths, target in train:
            loss = token_loss(model(source, lengths, target[:, :-1]), target[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step == STEPS:
                break
        model.eval()
        with torch.no_grad():
            held = [token_loss(model(s, n, t[:, :-1]), t[:, 1:]).item() for s, n, t in valid]
        print(f"step {step} valid {sum(held) / len(held):.4f}")


if __name__ == "__main__":
    main()
