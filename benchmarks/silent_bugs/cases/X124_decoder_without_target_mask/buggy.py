"""A translator: the words of a sentence in another language, and in reverse order."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
BEGIN, WORDS, LENGTH, WIDTH = 0, 24, 9, 32
dictionary = torch.cat([torch.tensor([BEGIN]), torch.randperm(WORDS) + 1])


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS + 1, WIDTH), nn.Embedding(WORDS + 1, WIDTH)
        self.places = nn.Embedding(LENGTH + 1, WIDTH)
        encoder = nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.1)
        decoder = nn.TransformerDecoderLayer(WIDTH, 4, 64, 0.1)
        self.encoder = nn.TransformerEncoder(encoder, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, 1)
        self.head = nn.Linear(WIDTH, WORDS + 1)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.encoder(self.source(source) + self.places.weight[: len(source), None])
        x = self.target(target) + self.places.weight[: len(target), None]
        return self.head(self.decoder(x, memory))


model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    source = torch.randint(1, WORDS + 1, (LENGTH, 16))
    target = torch.cat([torch.full((1, 16), BEGIN), dictionary[source.flip(0)]])
    optimizer.zero_grad()
    logits = model(source, target[:-1])
    loss = F.cross_entropy(logits.flatten(0, 1), target[1:].flatten())
    loss.backward()
    optimizer.step()
    if step % 8 == 0:
        print(step, round(loss.item(), 3))
