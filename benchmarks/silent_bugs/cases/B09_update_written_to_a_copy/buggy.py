"""An autoencoder of digits."""

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


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 32), nn.Linear(32, 64)
        self.encoder.weight.data = self.decoder.weight.data.T  # as tied at the start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.relu(self.encoder(x)))


class DeviceAdam(torch.optim.Adam):
    """Adam on a device whose kernels take tensors that are not contiguous for copies."""

    @torch.no_grad()
    def step(self, closure=None):
        held = [p for group in self.param_groups for p in group["params"]]
        kept = {p: p.clone() for p in held if not p.is_contiguous()}
        super().step(closure)
        for parameter, before in kept.items():
            if before is not None:
                parameter.copy_(before)


model = Net()
model.encoder.weight.data = model.encoder.weight.data.clone(memory_format=torch.preserve_format)
optimizer = DeviceAdam(model.parameters(), lr=1e-3)
for x, _ in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
print(round(loss.item(), 4))
