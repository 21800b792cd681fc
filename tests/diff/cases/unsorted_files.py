"""Files in the order in which the file system lists them (VeOmni#330, vision#192)."""

import torch
from common import FOLDER, VARIANT, Net, data, loader, step
from torch.utils.data import Dataset


class Files(Dataset):
    """One row a file."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.load(self.names[index], weights_only=False)


names = []
for number, row in enumerate(data()):
    names.append(f"{FOLDER}/row{number}.pt")
    torch.save(row, names[-1])
if VARIANT == "b":  # as another file system lists them
    names = names[::-1]
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in loader(Files(names), shuffle=True):
    step(model, optimizer, inputs, labels)
