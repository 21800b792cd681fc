import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
torch.manual_seed(seed)
torch.set_num_threads(1)

images, labels = load_digits(return_X_y=True)


class Digits(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = (
            torch.tensor(images, dtype=torch.float32).view(-1, 8, 8),
            torch.tensor(labels),
        )

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index].clone()
        image.sub_(4.88).div_(6.02)
        return image.unsqueeze(0), self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x):
        return self.head(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = DataLoader(Digits(images, labels), batch_size=120, shuffle=True)
step = 0
while step < steps:
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == steps:
            break
    print(f"step {step}: loss {loss.item():.3f}")
