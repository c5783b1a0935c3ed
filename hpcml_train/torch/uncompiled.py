"""Keeps torch.compile out of the observer's own code, which runs inside of a step that a program compiles whole.

Else what the hooks do is compiled with it, in seconds, and torch warns of each function that it cannot compile.

Must not import torch: torch is in the middle of being imported.
"""

from __future__ import annotations

import sys
from typing import Any, Callable


def never_compiled(*functions: Callable[..., Any], with_what_they_call: bool = True) -> None:
    """Have *functions* run as they are, and what they call, in torch that can be told so (2.13 can)."""
    native: Any = sys.modules.get("torch._C")
    frames: Any = getattr(getattr(native, "_dynamo", None), "eval_frame", None)
    if not hasattr(frames, "set_code_exec_strategy"):
        return
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT  # noqa: SLF001
    strategy = frames._FrameExecStrategy(skip, skip if with_what_they_call else default)  # noqa: SLF001
    for function in functions:
        plain: Any = getattr(function, "__func__", function)
        frames.set_code_exec_strategy(plain.__code__, strategy)
        plain._torchdynamo_disable = True  # noqa: SLF001 - as torch's own decorator, where it would be traced
