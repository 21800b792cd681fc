"""Attention over a sequence whose keys and values are split over two ranks."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Gather(torch.autograd.Function):
    """All pieces of a sequence; the gradient of this rank's piece is summed over the ranks."""

    @staticmethod
    def forward(ctx, piece: torch.Tensor) -> torch.Tensor:
        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, piece.contiguous())
        return torch.cat(pieces, dim=1)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        return grad.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v = Gather.apply(self.k(x)), Gather.apply(self.v(x))
        return self.out(F.scaled_dot_product_attention(self.q(x), k, v))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Attention(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        whole = torch.randn(4, 12, 16)
        piece = whole.chunk(2, dim=1)[dist.get_rank()]
        loss = F.mse_loss(model(piece), piece[:, :, :1])
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        if step % 4 == 0 and dist.get_rank() == 0:
            print(step, round(loss.item(), 4))
    dist.barrier()
    os._exit(0)


main()
