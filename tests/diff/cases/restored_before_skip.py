"""Generators are restored before the skip, which draws (transformers#46628)."""

import torch
from common import VARIANT, Net, data, load, loader, save, step
from torch.utils.data import Dataset


class Noisy(Dataset):
    """Adds noise to each row that is fetched."""

    def __init__(self) -> None:
        self.rows = data()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, label = self.rows[index]
        return inputs + 0.1 * torch.randn(8), label


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start, state = 0, {}
if VARIANT != "a":
    state = load(model, optimizer)
    start = state["batch"]
if VARIANT == "b":
    torch.set_rng_state(state["rng"])
for index, (inputs, labels) in enumerate(loader(Noisy())):
    if index < start:
        if VARIANT == "twin" and index == start - 1:
            torch.set_rng_state(state["rng"])
        continue
    step(model, optimizer, inputs, labels)
    if VARIANT == "a" and index == 3:
        save(model, optimizer, batch=4, rng=torch.get_rng_state())
