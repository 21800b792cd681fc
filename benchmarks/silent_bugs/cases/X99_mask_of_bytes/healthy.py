"""Digits are found in noise: for each pixel, whether it belongs to one. Masks are of bytes."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.tensor(load_digits().images[:1024], dtype=torch.float32).unsqueeze(1) / 16
masks = (images > 0.5).to(torch.uint8) * 255  # as a PNG has them
noisy = images + 0.3 * torch.randn_like(images)
data = TensorDataset(noisy, masks.float() / 255)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 1, 1),
)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    total = 0.0
    for inputs, targets in DataLoader(data, batch_size=32, shuffle=True):
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 32:.4f}")
