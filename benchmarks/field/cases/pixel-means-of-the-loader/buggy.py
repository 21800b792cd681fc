import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def color_normalize(image, means):
    image = image.astype(np.float32) / 255.0
    means /= 255.0
    for channel in range(3):
        image[channel] -= means[channel]
    return image


class KeypointDataset(Dataset):
    def __init__(self, seed, length, size=32, points=4):
        rng = np.random.default_rng(seed)
        self.size, self.points = size, points
        self.centers = rng.integers(4, size - 4, (length, points, 2))
        self.noise = rng.normal(0, 12, (length, 3, size, size))
        self.pixel_means = np.array([122.7717, 115.9465, 102.9801], dtype=np.float32)

    def __len__(self):
        return len(self.centers)

    def draw(self, index):
        image = np.full((3, self.size, self.size), 110.0) + self.noise[index]
        for k, (y, x) in enumerate(self.centers[index]):
            image[k % 3, y - 2 : y + 3, x - 2 : x + 3] += 70 + 15 * k
        return np.clip(image, 0, 255)

    def heatmaps(self, index):
        grid = np.arange(self.size)
        maps = []
        for y, x in self.centers[index]:
            maps.append(np.exp(-((grid[:, None] - y) ** 2 + (grid[None] - x) ** 2) / 8.0))
        return np.stack(maps).astype(np.float32)

    def __getitem__(self, index):
        image = color_normalize(self.draw(index), self.pixel_means)
        return torch.from_numpy(image), torch.from_numpy(self.heatmaps(index))


class PoseNet(nn.Module):
    def __init__(self, points=4, width=16):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.globalnet = nn.Conv2d(width, points, 3, padding=1)
        self.refine = nn.Sequential(
            nn.Conv2d(width + points, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, points, 1)
        )

    def forward(self, x):
        features = self.stem(x)
        coarse = self.globalnet(features)
        return coarse, self.refine(torch.cat([features, coarse], 1))


def pck(model, loader):
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for images, target in loader:
            _, fine = model(images)
            a, b = fine.flatten(2).argmax(-1), target.flatten(2).argmax(-1)
            size = target.shape[-1]
            far = torch.hypot((a // size - b // size).float(), (a % size - b % size).float())
            hits += (far <= 3).sum().item()
            total += far.numel()
    model.train()
    return hits / total


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 45
    torch.manual_seed(seed)
    train = DataLoader(KeypointDataset(seed, 240), batch_size=16, shuffle=True)
    val = DataLoader(KeypointDataset(seed + 1000, 64), batch_size=32)
    model = PoseNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2], gamma=0.5)
    step = epoch = 0
    while step < steps:
        for images, target in train:
            coarse, fine = model(images)
            loss = F.mse_loss(coarse, target) + F.mse_loss(fine, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == steps:
                break
        scheduler.step()
        epoch += 1
        print(f"epoch {epoch} step {step} loss {loss.item():.4f} pck {pck(model, val):.3f}")


main()
