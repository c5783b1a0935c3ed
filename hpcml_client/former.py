"""Old import names of modules that moved to `hpcml_train`; programs and recipes that use them still work.

Only documented names are answered, with a `DeprecationWarning`, and only where nothing else has them.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import warnings

TYPE_CHECKING = False  # not typing's own, which an agent does without
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Mapping, Optional

_MOVED: Mapping[str, str] = {
    "hpcml_client.datasets": "hpcml_train.data.digits",
    "hpcml_client.jax_arithmetic": "hpcml_train.jax.arithmetic",
    "hpcml_client.jax_recipe": "hpcml_train.jax.recipe",
    "hpcml_client.jax_training": "hpcml_train.jax.training",
    "hpcml_client.recipe_start": "hpcml_train.start",
    "hpcml_client.recipe_task": "hpcml_train.task hpcml_train.errors",
    "hpcml_client.tensorflow_arithmetic": "hpcml_train.tensorflow.arithmetic",
    "hpcml_client.tensorflow_recipe": "hpcml_train.tensorflow.recipe",
    "hpcml_client.tensorflow_strategies": "hpcml_train.tensorflow.strategies",
    "hpcml_client.tensorflow_training": "hpcml_train.tensorflow.training",
    "hpcml_client.torch_arithmetic": "hpcml_train.torch.arithmetic",
    "hpcml_client.torch_recipe": "hpcml_train.torch.recipe",
    "hpcml_client.torch_training": "hpcml_train.torch.training",
    "hpcml_client.torch_work": "hpcml_train.torch.flops",
}


class _Former:
    """An import hook for the old names, after all that Python finds by itself: finder and loader (importlib.abc)."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> Optional[importlib.machinery.ModuleSpec]:
        del path, target
        loader: Any = self
        return importlib.machinery.ModuleSpec(fullname, loader) if fullname in _MOVED else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Have Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        now = _MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is {now.replace(' ', ' and ')} now", DeprecationWarning, stacklevel=2)
        for part in now.split():
            found = vars(importlib.import_module(part))
            vars(module).update({name: value for name, value in found.items() if not name.startswith("__")})


def answer() -> None:
    """Install the import hook, once."""
    if not any(isinstance(finder, _Former) for finder in sys.meta_path):
        sys.meta_path.append(_Former())
