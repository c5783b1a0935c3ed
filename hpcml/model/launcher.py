"""What a command of the user's starts the processes of a training with."""

from __future__ import annotations

import shlex
from functools import lru_cache
from pathlib import PurePosixPath

_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "srun", "mpirun", "mpiexec"})
LAUNCHING_MODULES = {  # python -m MODULE
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner": "horovodrun",
}


@lru_cache(maxsize=1000)  # of a sweep's runs it is the same
def launcher_in(command: str) -> str | None:
    """Return the launcher that *command* begins with, as torchrun; None: nothing known."""
    try:
        first, *rest = shlex.split(command) or [""]
    except ValueError:
        return None  # planning refuses it
    first = PurePosixPath(first).name
    if not first.startswith("python"):
        return first if first in _LAUNCHERS else None
    script = next((at for at, word in enumerate(rest) if not word.startswith("-") or word == "-m"), len(rest))
    return (
        LAUNCHING_MODULES.get(rest[script + 1]) if rest[script : script + 1] == ["-m"] and rest[script + 1 :] else None
    )
