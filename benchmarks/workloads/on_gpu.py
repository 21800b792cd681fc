"""A CNN, a GPT-like model (bf16, 124 M parameters) or ResNet-18 on a GPU, timed in laps.

No step waits for the device, as in training that does not read its loss. A lap is ``UP_LAP`` steps,
with one wait before and one after it. Settings beside those of common.py:

  UP_MODEL   cnn | gpt | resnet18          UP_DEVICE  cuda | cpu
  UP_SIZE    full | tiny                   UP_LAPS    number of laps
  UP_LAP     steps in each                 UP_SYNC    error: calls that wait for the device raise
  UP_EXACT   1: deterministic algorithms
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(os.environ.get("UP_HOME", __file__))))
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Turns, env
from torch import nn

VOCAB = 50304  # of GPT-2, rounded up to a multiple of 64


class Block(nn.Module):
    """Attention and MLP with pre-normalization."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:  # B: batch, T: time, C: channels
        B, T, C = x_BTC.shape
        q, k, v = self.qkv(self.ln1(x_BTC)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.proj(mixed.transpose(1, 2).reshape(B, T, C))
        return x_BTC + self.down(F.gelu(self.up(self.ln2(x_BTC))))


class GPT(nn.Module):
    """A decoder with learned positions, whose head is its embedding, as in GPT-2."""

    def __init__(self, vocab: int, context: int, dim: int, layers: int) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList([Block(dim, dim // 64) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = self.tok(tokens_BT) + self.pos(places)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(self.ln(x_BTC))


class CNN(nn.Module):
    """Two convolutions and two linear layers of the usual MNIST shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.drop = nn.Dropout(0.25)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(F.relu(self.fc1(self.drop(torch.flatten(x, 1)))))


def gpt(device: str, is_full: bool) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """124 M parameters in bfloat16, 8 sequences of 512 tokens."""
    vocab, context, dim, layers, batch = (
        (VOCAB, 1024, 768, 12, 8) if is_full else (64, 32, 64, 2, 2)
    )
    model = GPT(vocab, context, dim, layers).to(device, torch.bfloat16)
    tokens = torch.randint(0, vocab, (batch, context // 2 + 1), device=device)

    def loss() -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.reshape(-1, vocab).float(), tokens[:, 1:].reshape(-1))

    return model, loss


def images(
    model: nn.Module, device: str, shape: tuple[int, ...]
) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """A model that tells ten classes apart, and its loss on one batch."""
    data, labels = torch.randn(shape, device=device), torch.randint(0, 10, shape[:1], device=device)
    return model, lambda: F.cross_entropy(model(data), labels)


def make(name: str, device: str, is_full: bool) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """The model and its loss. Tiny ones train in a moment on a CPU."""
    if name == "gpt":
        return gpt(device, is_full)
    if name == "cnn":
        return images(CNN().to(device), device, (128 if is_full else 2, 1, 28, 28))
    from resnet18 import ResNet18

    return images(ResNet18().to(device), device, (128 if is_full else 2, 3, 32, 32))


def wait(device: str) -> None:
    """Until the device has done all work."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


def main() -> None:
    device = env("DEVICE", "cuda")
    torch.manual_seed(env("SEED", 0, int))
    if env("EXACT", 0, int):
        torch.use_deterministic_algorithms(True, warn_only=True)
    model, loss_of = make(env("MODEL", "cnn"), device, env("SIZE", "full") == "full")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    turns = Turns(*env("TURNS", "").split(":")) if env("TURNS", "") else None
    wall, cpu = [], []
    steps = env("LAP", 4, int)
    wait(device)
    for _ in range(env("LAPS", 5, int)):
        if device == "cuda":
            torch.cuda.set_sync_debug_mode(env("SYNC", "default"))
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            optimizer.step()
        wait(device)
        wall.append((time.perf_counter() - began) / steps)
        cpu.append((time.process_time() - began_cpu) / steps)
        if turns is not None:
            turns.give()
            turns.take()
    if turns is not None:
        turns.give()
    digest = hashlib.sha256()
    for parameter in model.state_dict().values():
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    found = {
        "wall": wall,
        "cpu": cpu,
        "loss": loss.item(),
        "weights": digest.hexdigest(),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "peak_mb": torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0,
    }
    if path := os.environ.get("UP_TIMES"):
        Path(path).write_text(json.dumps(found), encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
