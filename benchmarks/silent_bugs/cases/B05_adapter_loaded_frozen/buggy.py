"""A low-rank adapter of a digit classifier is trained further."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
data = TensorDataset(images[:768], labels[:768])
loader = DataLoader(data, batch_size=64, shuffle=True)


class LoraLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.head = LoraLinear(64, 48), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.fc1(x)))


def load_adapter(model: Net, state: dict, *, is_trainable: bool = False) -> None:
    model.load_state_dict(state, strict=False)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.requires_grad_(is_trainable)


model = Net()
saved = {k: v + 0.01 for k, v in model.state_dict().items() if "lora_" in k}
load_adapter(model, saved)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(round(loss.item(), 3))
