"""Stands in for Weights & Biases in a run of hpcml: ``import hpcml_client.wandb as wandb``.

The calls of a training script report to hpcml, with W&B's names and steps; nothing is sent anywhere. What only W&B's
pages show is taken and left out, what hpcml cannot do raises `AttributeError`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

from hpcml_client.stand_in import Reporter

_reporter = Reporter("hpcml_client.wandb")
_runs: list[Run] = []  # the one that is not finished yet
_Config = argparse.Namespace | Mapping[str, Any] | None
_OF_A_RUN = ("log", "watch", "unwatch", "define_metric", "save", "alert", "log_artifact", "log_code", "mark_preempting")


class Error(Exception):
    """A call in the wrong order, as ``wandb.Error``."""


class Settings:
    """Takes any settings; none matters here."""

    def __init__(self, **settings: object) -> None:
        vars(self).update(settings)


class _Kept(dict[str, Any]):
    """A dictionary whose items are attributes too, and whose changes are reported."""

    def __init__(self, told: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        vars(self)["_told"] = told

    def update(  # type: ignore[override]
        self, *rows: _Config, allow_val_change: bool | None = None, **more: object
    ) -> None:
        """Set and report items; a row may be an ``argparse.Namespace``."""
        del allow_val_change
        new: dict[str, Any] = {}
        for row in rows:
            new.update(vars(row) if isinstance(row, argparse.Namespace) else row or {})
        new.update(more)
        super().update(new)
        vars(self)["_told"](new)

    def setdefaults(self, row: Mapping[str, Any]) -> None:
        """Set and report those items that are not there yet."""
        self.update({key: value for key, value in row.items() if key not in self})

    def as_dict(self) -> dict[str, Any]:
        """Return the items."""
        return dict(self)

    def __setitem__(self, key: str, value: object) -> None:
        self.update({key: value})

    def __setattr__(self, key: str, value: object) -> None:
        self.update({key: value})

    def __getattr__(self, key: str) -> Any:  # noqa: ANN401 - as in W&B
        if key not in self:
            raise AttributeError(f"{key!r} was not set")
        return self[key]


class Artifact:
    """A name for files: ``add_file`` and ``add_dir``, then ``log_artifact``."""

    def __init__(self, name: str, type: str, *_: object, **__: object) -> None:  # noqa: A002 - W&B's name for it
        self.name = name
        self.type = type
        self.paths: list[str] = []

    def add_file(self, local_path: str | os.PathLike[str], *_: object, **__: object) -> None:
        """Add a file that is there."""
        if not os.path.isfile(local_path):
            raise ValueError(f"Path is not a file: {os.fspath(local_path)!r}")
        self.paths.append(os.fspath(local_path))

    def add_dir(self, local_path: str | os.PathLike[str], *_: object, **__: object) -> None:
        """Add all files of a folder that is there."""
        if not os.path.isdir(local_path):
            raise ValueError(f"Path is not a directory: {os.fspath(local_path)!r}")
        self.paths.append(os.fspath(local_path))


class Image:
    """A picture, a table, a plot: taken and left out."""

    def __init__(self, *_: object, **__: object) -> None:
        _reporter.say("pictures, tables, histograms and plots are left out: write them to files")

    def add_data(self, *_: object) -> None:
        """Do nothing."""

    add_column = add_data


Audio = Graph = Histogram = Html = Molecule = Object3D = Plotly = Table = Video = Image


class _Plots:
    def __getattr__(self, name: str) -> Callable[..., Image]:
        if name.startswith("__"):
            raise AttributeError(name)
        return Image


plot = _Plots()


class Run:
    """What `init` returns; also `run`, while it is not finished."""

    def __init__(self, config: _Config, names: Mapping[str, Any]) -> None:
        client = _reporter.connect()
        self._number = _reporter.begin()
        self._summarized: dict[str, Any] = {}
        self.step = 0
        self.id = str(names.get("id") or os.environ.get("HPCML_RUN_ID") or "by-hand")
        self.name = str(names.get("name") or self.id)
        self.project, self.entity, self.group = names.get("project"), names.get("entity"), names.get("group")
        self.tags: tuple[str, ...] = tuple(names.get("tags") or ())
        self.notes, self.job_type = names.get("notes"), names.get("job_type")
        self.url: str | None = None
        self.resumed = client.attempt > 0
        self.disabled = self.offline = not _reporter.is_on
        self.config = _Kept(lambda new: _reporter.event("config", new))
        self.summary = _Kept(self._summarize)
        self.config.update(config)

    @property
    def dir(self) -> str:
        """A folder below the one where the program runs, made when it is asked for."""
        path = os.path.abspath(os.path.join("wandb", "files"))
        os.makedirs(path, exist_ok=True)
        return path

    def log(
        self,
        data: Mapping[str, Any],
        step: int | None = None,
        commit: bool | None = None,  # noqa: FBT001 - W&B's signature
        **_: object,
    ) -> None:
        """Report the numbers of *data*; as in W&B, steps count the calls unless they are said, and never go back."""
        if self not in _runs:
            raise Error(f"Run ({self.id}) is finished: call wandb.init() before log()")
        if step is not None and step < self.step:
            _reporter.say(f"step {step} is left out: steps never go back, and {self.step} was reached")
            return
        self.step = self.step if step is None else step
        shown = {key: value for key, value in data.items() if not str(key).startswith("_")}
        _reporter.report(shown, self.step, number=self._number)  # a key "step" is one of the values, as in W&B
        if commit or (commit is None and step is None):
            self.step += 1

    def finish(self, *_: object, **__: object) -> None:
        """Write everything to the disk; the run of hpcml ends with the program."""
        if self in _runs:
            _runs.remove(self)
            _reporter.connect().sync()

    def watch(self, *_: object, **__: object) -> None:
        """Do nothing: hpcml keeps no histograms of weights."""
        _reporter.say("watch is left out: hpcml keeps no histograms of weights")

    def define_metric(self, *_: object, **__: object) -> None:
        """Do nothing: which metric decides, and which way is better, is `objective` in hpcml."""

    unwatch = save = log_code = mark_preempting = define_metric

    def alert(self, title: str, text: str = "", **_: object) -> None:
        """Report a note; hpcml tells people by ``notify``."""
        _reporter.event("note", {"text": f"{title}: {text}"})

    def log_artifact(
        self,
        artifact_or_path: Artifact | str | os.PathLike[str],
        name: str | None = None,
        type: str | None = None,  # noqa: A002 - W&B's name for it
        **_: object,
    ) -> Artifact:
        """Report the files, with their sizes and SHA-256; they stay where they are."""
        if isinstance(artifact_or_path, Artifact):
            made = artifact_or_path
        else:
            made = Artifact(name or os.path.basename(os.fspath(artifact_or_path)), type or "unspecified")
            made.paths.append(os.fspath(artifact_or_path))
        for path in made.paths:
            _reporter.file(path, made.type)
        return made

    def _summarize(self, new: Mapping[str, Any]) -> None:
        _reporter.event("summary", new)
        unlogged = {key: value for key, value in new.items() if not _reporter.has(key) or key in self._summarized}
        self._summarized.update(unlogged)
        _reporter.report(unlogged, self.step, number=self._number)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


def init(
    project: str | None = None,
    entity: str | None = None,
    config: _Config = None,
    mode: str | None = None,
    **more: object,
) -> Run:
    """Begin to report, or return the run that is not finished; *config* becomes an event.

    With ``mode="disabled"``, or WANDB_MODE so, nothing is reported.
    """
    if not _runs:
        _reporter.is_on = (mode or os.environ.get("WANDB_MODE")) != "disabled"
        _runs.append(Run(config, {"project": project, "entity": entity, **more}))
    return _runs[0]


def finish(*_: object, **__: object) -> None:
    """Finish the run, if there is one."""
    while _runs:
        _runs[0].finish()


def login(*_: object, **__: object) -> bool:
    """Do nothing: there is no account."""
    return True


setup = login


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the names are of several types
    if name == "run":
        return _runs[0] if _runs else None
    if name in (*_OF_A_RUN, "config", "summary"):
        if _runs:
            return getattr(_runs[0], name)
        if name in _OF_A_RUN:
            return _refuse(name)
        raise Error(f"You must call wandb.init() before wandb.{name}")
    raise _reporter.lacks(
        name, "it takes what a training script calls. For the rest: the real wandb, WANDB_MODE=offline"
    )


def _refuse(name: str) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise Error(f"You must call wandb.init() before wandb.{name}()")

    return refuse
