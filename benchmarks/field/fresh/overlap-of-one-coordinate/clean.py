import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
S, B, SIZE = 4, 2, 32


def pictures(count):
    images = 0.1 * torch.randn(count, 1, SIZE, SIZE)
    truth = torch.zeros(count, S, S, 5)
    for image, target in zip(images, truth):
        w, h = torch.randint(6, 14, (2,)).tolist()
        x, y = torch.randint(0, SIZE - w, (1,)).item(), torch.randint(0, SIZE - h, (1,)).item()
        image[0, y : y + h, x : x + w] += 1
        cx, cy = (x + w / 2) / SIZE * S, (y + h / 2) / SIZE * S
        box = torch.tensor([cx - int(cx), cy - int(cy), w / SIZE, h / SIZE, 1.0])
        target[int(cy), int(cx)] = box
    return images, truth


def corners(boxes):
    out = torch.zeros(len(boxes), 4)
    out[:, :2] = boxes[:, :2] / float(S) - 0.5 * boxes[:, 2:4]
    out[:, 2:4] = boxes[:, :2] / float(S) + 0.5 * boxes[:, 2:4]
    return out


def overlap(pred, target):
    p, t = corners(pred), corners(target)
    inner = (torch.min(p[:, 2:], t[:, 2:]) - torch.max(p[:, :2], t[:, :2])).clamp(min=0).prod(1)
    return inner / (pred[:, 2:4].prod(1) + target[:, 2:4].prod(1) - inner + 1e-6)


def yolo_loss(out, truth):
    out = out.view(-1, S, S, B, 5)
    filled = truth[..., 4] > 0
    boxes, targets = out[filled], truth[filled]
    coordinates, confident = 0.0, 0.0
    for pred, target in zip(boxes, targets):
        with torch.no_grad():
            iou = overlap(pred, target.expand(B, 5))
            best = iou.argmax()
        coordinates = coordinates + F.mse_loss(pred[best, :4], target[:4], reduction="sum")
        confident = confident + (pred[best, 4] - iou[best]) ** 2
    empty = (out[~filled][..., 4] ** 2).sum()
    return (5 * coordinates + confident + 0.5 * empty) / len(out)


net = nn.Sequential(
    nn.Conv2d(1, 8, 3, 2, 1),
    nn.LeakyReLU(0.1),
    nn.Conv2d(8, 16, 3, 2, 1),
    nn.LeakyReLU(0.1),
    nn.Conv2d(16, 32, 3, 2, 1),
    nn.LeakyReLU(0.1),
    nn.Conv2d(32, B * 5, 1),
    nn.Sigmoid(),
)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(40):
    images, truth = pictures(12)
    loss = yolo_loss(net(images).permute(0, 2, 3, 1), truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
