import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
data = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, low, high):
        level = (x / scale).round()
        ctx.save_for_backward((level >= low) & (level <= high))
        return level.clamp(low, high) * scale

    @staticmethod
    def backward(ctx, grad_output):
        (inside,) = ctx.saved_tensors
        return grad_output * inside, None, None, None


class QuantizedLinear(nn.Linear):
    def forward(self, x):
        weight = Quantize.apply(self.weight, 0.02, -8, 7)
        return F.linear(Quantize.apply(x, 0.125, 0, 15), weight, self.bias)


model = nn.Sequential(QuantizedLinear(64, 48), nn.ReLU(), QuantizedLinear(48, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    for index in torch.randperm(len(data)).split(64):
        loss = F.cross_entropy(model(data[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
