"""Whether torch compiles or exports the program instead of running it: nothing is recorded then.

This is `torch.compiler.is_compiling`, which is two calls deep, in parts. Wrappers test

    is_traced() or ... or state._is_compiling_flag

so that a step that is not recorded pays for one call.
"""

from __future__ import annotations

from typing import Any

from torch import compiler


class _Asked:
    """Replaces a flag that this torch does not have."""

    @property
    def _is_compiling_flag(self) -> bool:
        return compiler.is_compiling()


# Dynamo recognizes this function by name and assumes true: no code after it enters its graphs.
is_traced = compiler.is_dynamo_compiling
# The owner of the flag that is set while torch exports, and while a backend compiles.
state: Any = compiler if hasattr(compiler, "_is_compiling_flag") else _Asked()
