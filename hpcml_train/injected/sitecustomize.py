"""Observes whatever trains with torch, without a line in the program: for ``precision.observe=always``.

Its folder comes first on PYTHONPATH, and Python runs it at its start. It imports nothing that the program does not: a
finder waits for torch's optimizers. Another sitecustomize, which this one hides, is run as ever. Every Python 3 that a
job may start must be able to read it.
"""

import os
import sys

_OPTIMIZERS = "torch.optim.optimizer"


class _Finder:
    """Has a function called once torch's optimizers have been executed."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> object:  # noqa: ARG003 - as Python calls it
        if name != _OPTIMIZERS:
            return None
        sys.meta_path.remove(cls)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: object) -> None:
            execute(module)
            try:
                from hpcml_train.torch.injection import watch

                watch(module)
            except Exception as error:  # noqa: BLE001 - never the program's trouble
                sys.stderr.write(f"hpcml: the precision is not observed: {error}\n")

        spec.loader.exec_module = exec_module
        return spec


def _run_the_hidden_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    import importlib.machinery
    import importlib.util

    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("HPCML_RUN_DIR"):
    sys.meta_path.insert(0, _Finder)
_run_the_hidden_one()
