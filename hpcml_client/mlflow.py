"""Stands in for MLflow in a run of hpcml: ``import hpcml_client.mlflow as mlflow``.

The calls of a training script report to hpcml; there is no server and no database. What hpcml cannot do raises
`AttributeError`: `autolog` too, since a program that relies on it would report nothing.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, SupportsFloat, cast

from hpcml_client.stand_in import Reporter

_reporter = Reporter("hpcml_client.mlflow")
_active: list[ActiveRun] = []  # the innermost last
_FOLDER = "mlflow-artifacts"  # below the one where the program runs
_LACKS = {
    "autolog": "log_metric what you want to compare, or use hpcml_client's callback for your framework",
}
_OTHERWISE = "it takes what a training script calls"


class ActiveRun:
    """What `start_run` returns, to be used by ``with``."""

    def __init__(self, name: str | None, run_id: str | None) -> None:
        self._number = _reporter.begin()
        own = os.environ.get("HPCML_RUN_ID") if self._number == 1 else None
        made = run_id or own or uuid.uuid4().hex
        self.info = SimpleNamespace(
            run_id=made, run_uuid=made, run_name=name or made, experiment_id="0", status="RUNNING",
            artifact_uri=os.path.abspath(_FOLDER), start_time=int(time.time() * 1000), end_time=None,
        )  # fmt: skip
        self.data = SimpleNamespace(metrics={}, params={}, tags={})

    def __enter__(self) -> ActiveRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        while self in _active:
            end_run("FINISHED" if kind is None else "FAILED")

    def report(self, values: Mapping[str, Any], step: int | None) -> None:
        """Report the *values* of one step, which must be numbers; without a step they are numbered from 0."""
        numbers = {name: _number(name, value) for name, value in values.items()}
        _reporter.report(numbers, None if step is None else int(step), number=self._number)
        self.data.metrics.update(numbers)


def start_run(
    run_id: str | None = None,
    experiment_id: str | None = None,
    run_name: str | None = None,
    nested: bool = False,  # noqa: FBT001, FBT002 - MLflow's signature
    *_: object,
    tags: Mapping[str, Any] | None = None,
    **__: object,
) -> ActiveRun:
    """Begin a run; as in MLflow, one inside of another must say *nested*."""
    del experiment_id
    if _active and not nested:
        raise Exception(  # noqa: TRY002 - what MLflow raises
            f"Run with UUID {_active[-1].info.run_id} is already active: call end_run() first, or say nested=True"
        )
    _reporter.connect()
    _active.append(ActiveRun(run_name, run_id))
    set_tags(tags or {})
    return _active[-1]


def end_run(status: str = "FINISHED") -> None:
    """End the innermost run, if there is one; that of hpcml ends with the program."""
    if _active:
        info = _active.pop().info
        info.status, info.end_time = status, int(time.time() * 1000)
        _reporter.connect().sync()


def active_run() -> ActiveRun | None:
    """Return the innermost run, or None."""
    return _active[-1] if _active else None


def log_metric(key: str, value: object, step: int | None = None, *_: object, **__: object) -> None:
    """Report a number; values without a step are numbered from 0."""
    _run().report({key: value}, step)


def log_metrics(metrics: Mapping[str, Any], step: int | None = None, *_: object, **__: object) -> None:
    """Report the numbers of one step."""
    _run().report(metrics, step)


def log_param(key: str, value: object, *_: object, **__: object) -> object:
    """Report a parameter as an event, and return its value."""
    log_params({key: value})
    return value


def log_params(params: Mapping[str, Any], *_: object, **__: object) -> None:
    """Report parameters as an event."""
    _run().data.params.update({key: str(value) for key, value in params.items()})
    _reporter.event("config", params)


def set_tag(key: str, value: object, *_: object, **__: object) -> None:
    """Report a tag as an event."""
    set_tags({key: value})


def set_tags(tags: Mapping[str, Any], *_: object, **__: object) -> None:
    """Report tags as an event."""
    _run().data.tags.update({key: str(value) for key, value in tags.items()})
    _reporter.event("tags", tags)


def log_artifact(local_path: str | os.PathLike[str], *_: object, **__: object) -> None:
    """Report a file with its size and SHA-256; it stays where it is."""
    _run()
    _reporter.file(os.fspath(local_path))


log_artifacts = log_artifact


def log_text(text: str, artifact_file: str, *_: object, **__: object) -> None:
    """Write *text* to the file below ``mlflow-artifacts`` where the program runs, and report it; in a run only."""
    path = _place(artifact_file)
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        _reporter.file(path)


def log_dict(dictionary: object, artifact_file: str, *_: object, **__: object) -> None:
    """Write JSON as `log_text` does."""
    log_text(json.dumps(dictionary, indent=2, default=str), artifact_file)


def log_figure(figure: Any, artifact_file: str, **_: object) -> None:  # noqa: ANN401 - of either library
    """Write what has ``savefig`` (Matplotlib) or ``write_html`` (Plotly) as `log_text` does."""
    path = _place(artifact_file)
    if path is not None:
        (figure.savefig if hasattr(figure, "savefig") else figure.write_html)(path)
        _reporter.file(path)


def set_experiment(
    experiment_name: str | None = None, experiment_id: str | None = None, **_: object
) -> SimpleNamespace:
    """Do nothing: the experiment is hpcml's."""
    return SimpleNamespace(name=experiment_name, experiment_id=experiment_id or "0")


def set_tracking_uri(uri: object = None) -> None:
    """Do nothing: there is no server."""


set_experiment_tag = set_experiment_tags = set_registry_uri = set_experiment
enable_system_metrics_logging = disable_system_metrics_logging = set_tracking_uri  # hpcml samples the machine itself


def get_tracking_uri() -> str:
    """Return a word for hpcml, which has no server."""
    return "hpcml"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the names are of several types
    raise _reporter.lacks(name, _LACKS.get(name, _OTHERWISE))


def _run() -> ActiveRun:
    return _active[-1] if _active else start_run()


def _number(name: str, value: object) -> float:
    try:
        return float(cast("SupportsFloat", value))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name}={value!r} is no number that a metric can hold") from None


def _place(artifact_file: str) -> str | None:
    """Return where to write the file; None outside of a run of hpcml."""
    _run()
    if _reporter.connect().run_dir is None:
        return None
    path = os.path.abspath(os.path.join(_FOLDER, artifact_file))
    if not path.startswith(os.path.abspath(_FOLDER) + os.sep):
        raise ValueError(f"{artifact_file!r} must stay inside of the artifacts")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path
