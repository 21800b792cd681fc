"""Train a head, then the whole network, on several ranks with DistributedDataParallel.

The loss falls on each rank, and the ranks train different networks: see README.md.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(nn.Module):
    """Features that begin as the principal components of the images, and a head."""

    def __init__(self, components: Tensor) -> None:
        super().__init__()
        self.features = nn.Linear(64, len(components))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(len(components), 10))
        with torch.no_grad():
            self.features.weight.copy_(components)
            self.features.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def main() -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16.0, dtype=torch.float32)
    data = TensorDataset(x, torch.tensor(labels))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    components = PCA(32, random_state=0).fit(x.numpy()).components_
    model = Classifier(torch.tensor(components, dtype=torch.float32))
    model.features.requires_grad_(False)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    for epoch in range(4):
        sampler.set_epoch(epoch)
        if epoch == 2:
            model.features.requires_grad_(True)
        for images, labels in loader:
            loss = F.cross_entropy(ddp(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if distributed.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    distributed.monitored_barrier()  # a model that is freed right after an exchange may hang
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
