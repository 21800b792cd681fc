"""Looking at tensors without autograd taking note."""

from __future__ import annotations

import torch


class NoGrad:
    """`torch.no_grad`, at a third of its price: that makes two objects of Python for each use."""

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        self._was = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_raised: object) -> None:
        torch._C._set_grad_enabled(self._was)
