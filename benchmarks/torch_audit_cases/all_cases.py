"""All cases, in the order of the table. Importing the modules enters their programs."""

from benchmarks.torch_audit_cases import data, graph, host, numbers, settings, tokens
from benchmarks.torch_audit_cases.case import CASES

MODULES = (numbers, settings, data, graph, tokens, host)

__all__ = ["CASES", "MODULES"]
