"""Questions to a device beside the CPU. All tensors that are read are on the CPU or on one.

It is CUDA, or what torch gives the same name. Another one is added here: docs/adding-a-device.md.

Attributes:
    KIND: its name in torch, in names of generators and in profiles.
    MODULE: the module of torch with its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

KIND = "cuda"
MODULE: Any = getattr(torch, KIND)

# Of a tensor: whether it is on such a device. As fast as the attribute.
is_remote: Callable[[torch.Tensor], bool] = getattr(torch._C.TensorBase, f"is_{KIND}").__get__


def is_used() -> bool:
    """Whether this process has used such a device."""
    found: bool = MODULE.is_initialized()
    return found


def can_capture() -> bool:
    """Whether the work of this thread is being captured in a graph, if there is a device."""
    found: bool = MODULE.is_current_stream_capturing()
    return found


def is_capturing() -> bool:
    """Whether work for a GPU is being captured in a graph: waiting would end the capture."""
    return is_used() and can_capture()


def stream(device: torch.device) -> Any:
    """The queue that gets the work of this thread; None on the CPU."""
    return MODULE.current_stream(device) if device.type == KIND else None


def follow(streams: Iterable[Any]) -> None:
    """Let the work that comes next in this thread wait for that of other queues."""
    for other in streams:
        here = MODULE.current_stream(other.device)
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
    MODULE.current_stream(numbers.device).record_event().synchronize()
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
    return MODULE.Event(enable_timing=True)


def wait() -> None:
    """Wait for all work of the device."""
    MODULE.synchronize()


def allocated() -> int:
    """Bytes that the allocator of the present device has given out."""
    count: int = MODULE.memory_allocated()
    return count


def computing() -> int:
    """Number of devices on which this process holds memory."""
    if not MODULE.is_available() or not MODULE._initialized:
        return 0
    return sum(bool(MODULE.memory_allocated(n)) for n in range(MODULE.device_count()))


def generator_states() -> Iterator[tuple[str, torch.Tensor]]:
    """Name and state of each generator: seed and offset, which the host has."""
    for index, generator in enumerate(MODULE.default_generators):
        yield f"{KIND}:{index}" if index else KIND, generator.get_state()


def names() -> tuple[str, ...]:
    """Of all devices; none if this process has not used one, because asking would start it."""
    return tuple(map(MODULE.get_device_name, range(MODULE.device_count()))) if is_used() else ()
