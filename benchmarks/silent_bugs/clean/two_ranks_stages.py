"""A pipeline by hand: each rank holds a stage; activations go forth and their gradients back."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

WIDTH, ROWS = 64, 32


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    stage = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU())
    if rank == 1:
        stage.append(nn.Linear(WIDTH, 10))
    optimizer = torch.optim.Adam(stage.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)  # the same rows on both
    for step in range(20):
        rows = torch.randint(len(x), (ROWS,), generator=generator)
        optimizer.zero_grad()
        if rank == 0:
            sent = stage(x[rows])
            dist.send(sent.detach(), 1)
            gradient = torch.empty_like(sent)
            dist.recv(gradient, 1)
            sent.backward(gradient)
        else:
            came = torch.empty(ROWS, WIDTH)
            dist.recv(came, 0)
            came.requires_grad_()
            loss = F.cross_entropy(stage(came), y[rows])
            loss.backward()
            dist.send(came.grad, 0)
            if step % 5 == 0:
                print(step, round(loss.item(), 3))
        optimizer.step()
    dist.barrier()
    os._exit(0)


main()
