"""Two loader workers with random augmentation from torch's generator, and a last small batch."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self) -> None:
        digits = load_digits()
        self.x = torch.tensor(digits.images[:200], dtype=torch.float32) / 16
        self.y = torch.tensor(digits.target[:200])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        shift = int(torch.randint(-1, 2, ()))
        image = self.x[index].roll(shift, dims=1) + 0.05 * torch.randn(8, 8)
        return image.flatten(), self.y[index]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Noisy(), batch_size=32, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(epoch, round(loss.item(), 3))


if __name__ == "__main__":
    main()
