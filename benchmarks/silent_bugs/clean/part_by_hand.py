"""An optimizer trains the body; the program updates the head itself. Gradients are set to None."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 128, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    for epoch in range(2):
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs), targets)
            for parameter in model.parameters():
                parameter.grad = None
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for parameter in model[2].parameters():
                    parameter.sub_(0.1 * parameter.grad)
        print(f"epoch {epoch} loss {loss.item():.4f}")


main()
