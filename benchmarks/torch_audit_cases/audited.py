"""Run programs under torch-audit, in each of the ways its documentation shows. Imports it late."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.torch_audit_cases.case import AUTOPATCH, DECORATOR, Case, Plain


class Corrupted(Exception):  # noqa: N818  # what happened to the program
    """The program went on, and computed something else."""


class Audited(Plain):
    """Every step is audited, in the style the case asks for."""

    def __init__(self, style: str) -> None:
        self._style = style
        self._auditor: Any = None

    @property
    def findings(self) -> list[Any]:
        return list(self._auditor.findings) if self._auditor is not None else []

    def begin(self, model: nn.Module, optimizer: Any) -> None:
        from torch_audit import Auditor, autopatch

        if self._style == AUTOPATCH:
            self._auditor = autopatch(model, optimizer=optimizer, every_n_steps=1)
            return
        self._auditor = Auditor(model, optimizer=optimizer, every_n_steps=1)
        self._auditor.attach()
        self._auditor.audit_static()
        self._auditor.audit_init()

    def forward(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._by_wrappers and model is self._auditor.model:
            return self._auditor.forward(*args, **kwargs)
        return model(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        if self._by_wrappers:
            self._auditor.backward(loss)
        else:
            loss.backward()

    def step(self, optimizer: Any) -> None:
        if self._by_wrappers and optimizer is self._auditor.optimizer:
            self._auditor.optimizer_step()
        else:
            optimizer.step()

    def wrap(self, step: Callable[..., Any]) -> Callable[..., Any]:
        from torch_audit import audit_step

        if self._style != DECORATOR:
            return step
        wrapped: Callable[..., Any] = audit_step(self._auditor)(step)
        return wrapped

    def end(self) -> None:
        self._auditor.detach()

    @property
    def _by_wrappers(self) -> bool:
        return self._style not in (AUTOPATCH, DECORATOR)


def audit(case: Case) -> dict[str, Any]:
    """The tool's result for a program: findings by id, and whether the program survived."""
    torch.manual_seed(0)
    hands = Audited(case.style)
    end = ""
    try:
        case.program(hands)
    except Corrupted as error:
        end = f"corrupted: {error}"
    except Exception as error:  # whatever stops the program
        where = traceback.extract_tb(error.__traceback__)[-1].filename
        said = re.sub(r" at 0x\w+", "", str(error))[:60]
        end = f"crash: {type(error).__name__} in {where.rpartition('/')[2]}: {said}"
    return {"findings": dict(Counter(f.rule_id for f in hands.findings)), "end": end}
