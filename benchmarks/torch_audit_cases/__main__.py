"""Run one program as it is, or several under the other tool; the latter prints JSON."""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.torch_audit_cases.all_cases import CASES
from benchmarks.torch_audit_cases.audited import audit
from benchmarks.torch_audit_cases.case import Plain


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    if words[0] == "--audited":
        found = {name: audit(CASES[name]) for name in words[1:]}
        print("\n" + json.dumps(found))  # findings of reporters may come before
        return
    torch.manual_seed(0)
    CASES[words[0]].program(Plain())


if __name__ == "__main__":
    main(sys.argv[1:])
