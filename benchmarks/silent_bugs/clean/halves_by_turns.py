"""Two optimizers, of the halves of one model, alternate every ten steps, on all gradients.

Without dropout or batch normalization the mode of the model makes no difference.
"""

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
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 64, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizers = [torch.optim.Adam(model[index].parameters(), lr=3e-3) for index in (0, 2)]
    step = 0
    for epoch in range(2):
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs), targets)
            model.zero_grad()
            loss.backward()
            optimizers[step // 10 % 2].step()
            step += 1
        model.eval()
        with torch.no_grad():
            print(f"epoch {epoch} loss {F.cross_entropy(model(inputs), targets).item():.4f}")


main()
