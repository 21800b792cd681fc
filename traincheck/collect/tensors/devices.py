"""Questions to a device beside the CPU. All tensors that are read are on the CPU or on one.

It is CUDA, or what torch gives the same name. Another one is added here, in the clock of a profile
(profile/clock.py), and in the functions that set its generators (moments/generators.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

KIND = "cuda"

_base: Any = torch._C.TensorBase
# Of a tensor: whether it is on such a device. As fast as the attribute.
is_remote: Callable[[torch.Tensor], bool] = _base.is_cuda.__get__


def is_used() -> bool:
    """Whether this process has used such a device."""
    found: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return found


def can_capture() -> bool:
    """Whether the work of this thread is being captured in a graph, if there is a device."""
    return torch.cuda.is_current_stream_capturing()


def is_capturing() -> bool:
    """Whether work for a GPU is being captured in a graph: waiting would end the capture."""
    return is_used() and can_capture()


def stream(device: torch.device) -> Any:
    """The queue that gets the work of this thread; None on the CPU."""
    return torch.cuda.current_stream(device) if device.type == KIND else None


def follow(streams: Iterable[Any]) -> None:
    """Let the work that comes next in this thread wait for that of other queues."""
    for other in streams:
        here = torch.cuda.current_stream(other.device)
        if here != other:
            here.wait_stream(other)


def host(numbers: torch.Tensor) -> torch.Tensor:
    """Copy numbers to the host. Waits until their device has computed them.

    A program may have set torch to warn or to raise on a wait (set_sync_debug_mode). That concerns
    its own calls, so this waits for an event, which torch does not count.
    """
    if not is_remote(numbers):
        return numbers.cpu()
    pinned = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
    pinned.copy_(numbers, non_blocking=True)
    torch.cuda.current_stream(numbers.device).record_event().synchronize()
    return pinned


def read_together(rows: Sequence[torch.Tensor]) -> Iterator[list[float]]:
    """The numbers of tensors of one dim, copied at once. Waits for their devices."""
    home, at = rows[0].device, 0
    flat = host(torch.cat([row.to(home) for row in rows])).tolist()
    for row in rows:
        yield flat[at : at + len(row)]
        at += len(row)


def event() -> Any:
    """A new event that takes the time when it is recorded."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def wait() -> None:
    """Wait for all work of the device."""
    torch.cuda.synchronize()


def allocated() -> int:
    """Bytes that the allocator of the present device has given out."""
    return torch.cuda.memory_allocated()


def computing() -> int:
    """Number of devices on which this process holds memory."""
    if not torch.cuda.is_available() or not torch.cuda._initialized:
        return 0
    return sum(bool(torch.cuda.memory_allocated(n)) for n in range(torch.cuda.device_count()))


def generator_states() -> Iterator[tuple[str, torch.Tensor]]:
    """Name and state of each generator: seed and offset, which the host has."""
    for index, generator in enumerate(torch.cuda.default_generators):
        yield f"{KIND}:{index}" if index else KIND, generator.get_state()
