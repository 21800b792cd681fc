"""A small language model that initialises its projections by itself."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, WIDTH = 30, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.c_proj(F.gelu(self.c_fc(x)))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.h, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(WIDTH, VOCAB)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.02)
        for name, parameter in module.named_parameters():
            if "c_proj" in name and "weight" in name:
                nn.init.normal_(parameter, 0.0, 0.01)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.h:
            x = block(x)
        return self.head(x)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(12):
    ids = (torch.randint(0, VOCAB, (8, 1)) + torch.arange(25)) % VOCAB
    optimizer.zero_grad()
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 3))
