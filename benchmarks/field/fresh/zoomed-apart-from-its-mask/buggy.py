import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
SIZE = 24


class RandomZoom:
    def __init__(self, share=0.7):
        self.side = int(SIZE * share)

    def __call__(self, *pictures):
        left, top = torch.randint(0, SIZE - self.side + 1, (2,)).tolist()
        return [self.zoom(picture, left, top) for picture in pictures]

    def zoom(self, picture, left, top):
        part = picture[:, top : top + self.side, left : left + self.side]
        return F.interpolate(part.unsqueeze(0), size=(SIZE, SIZE), mode="nearest").squeeze(0)


class Cells(Dataset):
    def __init__(self, count=96):
        rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        centers = torch.randint(6, SIZE - 6, (count, 2))
        far = (rows - centers[:, 0, None, None]) ** 2 + (columns - centers[:, 1, None, None]) ** 2
        self.masks = (far < 16).float().unsqueeze(1)
        self.images = self.masks + 0.3 * torch.randn(count, 1, SIZE, SIZE)
        self.zoom = RandomZoom()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        (image,) = self.zoom(self.images[index])
        (mask,) = self.zoom(self.masks[index])
        return image, mask


model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(8, 1, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
loader = DataLoader(Cells(), batch_size=16, shuffle=True)
for epoch in range(4):
    for images, masks in loader:
        loss = F.binary_cross_entropy_with_logits(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
