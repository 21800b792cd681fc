"""CTC over padded utterances of different lengths."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

WORDS, BANDS = 6, 10


def batch(count=8):
    frames, texts = [], []
    for _ in range(count):
        text = torch.randint(1, WORDS + 1, (int(torch.randint(2, 5, ())),))
        spoken = F.one_hot(text.repeat_interleave(4), BANDS).float()
        frames.append(spoken + 0.2 * torch.randn_like(spoken))
        texts.append(text)
    lengths = torch.tensor([len(f) for f in frames])
    counts = torch.tensor([len(t) for t in texts])
    return nn.utils.rnn.pad_sequence(frames, batch_first=True), lengths, torch.cat(texts), counts


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(BANDS, 32, batch_first=True, bidirectional=True)
        self.say = nn.Linear(64, WORDS + 1)

    def forward(self, frames, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            frames, lengths, batch_first=True, enforce_sorted=False
        )
        heard, _ = nn.utils.rnn.pad_packed_sequence(self.read(packed)[0], batch_first=True)
        return self.say(heard).log_softmax(-1)


model, ctc = Listener(), nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(30):
    frames, lengths, texts, counts = batch()
    loss = ctc(model(frames, lengths).transpose(0, 1), texts, lengths, counts)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
