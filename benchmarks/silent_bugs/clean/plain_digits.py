"""A multi-layer perceptron on the digits of scikit-learn, trained and evaluated in epochs."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.norm = nn.BatchNorm1d(48)
        self.drop = nn.Dropout(0.2)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.drop(F.relu(self.norm(self.fc1(x)))))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data[:640], dtype=torch.float32) / 16
    y = torch.tensor(digits.target[:640])
    train, test = random_split(TensorDataset(x, y), [512, 128])
    loader = DataLoader(train, batch_size=64, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for images, labels in DataLoader(test, batch_size=64):
                right += int((model(images).argmax(dim=1) == labels).sum())
        print(epoch, round(loss.item(), 3), right / 128)


main()
