"""A neural differential equation whose gradient is integrated backwards."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))

    def forward(self, z):
        return self.net(z)


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, field, steps, size, *parameters):
        with torch.no_grad():
            for _ in range(steps):
                z = z + size * field(z + size / 2 * field(z))
        ctx.field, ctx.steps, ctx.size, ctx.parameters = field, steps, size, parameters
        ctx.save_for_backward(z)
        return z

    @staticmethod
    def backward(ctx, slope):
        (z,) = ctx.saved_tensors
        sums = [torch.zeros_like(p) for p in ctx.parameters]
        for _ in range(ctx.steps):
            with torch.no_grad():
                z = z - ctx.size * ctx.field(z - ctx.size / 2 * ctx.field(z))
            with torch.enable_grad():
                start = z.detach().requires_grad_(True)
                end = start + ctx.size * ctx.field(start + ctx.size / 2 * ctx.field(start))
                slope, *more = torch.autograd.grad(end, [start, *ctx.parameters], slope)
            sums = [s + m for s, m in zip(sums, more)]
        return slope, None, None, None, *sums


field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]])
for step in range(30):
    z = torch.randn(32, 2)
    end = Adjoint.apply(z, field, 8, 1 / 8, *field.parameters())
    loss = F.mse_loss(end, z @ turn)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step}: loss {loss.item():.4f}")
