"""Runs one recipe several times in one process, so that its framework is imported once.

python recipe_driver.py FOLDER[::MODULE] RUN_DIR...: each with a run.json in it; of RUN_DIR@STEP a signal ends the
first attempt after that step, and the next RUN_DIR is its second one. What refuses RUN_DIR! is an event of it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcml_client import Client, connect
from hpcml_train.errors import DatasetError, RecipeError
from hpcml_train.task import Task


def signal_after(run: Client, step: int) -> None:
    """Send this process SIGUSR1 as soon as *step* is reported."""
    report = run.metrics

    def metrics(values: Mapping[str, object], at: int | None = None) -> None:
        report(values, at)
        if at == step:
            os.kill(os.getpid(), signal.SIGUSR1)

    run.metrics = metrics


def main(folder: str, words: list[str]) -> None:
    folder, _, module = folder.partition("::")
    sys.path.insert(0, folder)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for word in words:
        run_dir, _, step = word.removesuffix("!").partition("@")
        attempt = "1" if any((Path(run_dir) / "journal").glob("0-*")) else "0"
        config = str(Path(run_dir) / "run.json")
        with connect({"HPCML_RUN_DIR": run_dir, "HPCML_CONFIG": config, "HPCML_ATTEMPT": attempt}) as run:
            if step:
                signal_after(run, int(step))
            training = importlib.import_module(module or "training")
            try:
                finished = training.train(run, Task.from_config(run.config), run.checkpoints())
            except (RecipeError, DatasetError) as error:
                if not word.endswith("!"):
                    raise
                run.event("refused", reason=str(error))
            else:
                assert finished is not (bool(step) or word.endswith("!")), word


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
