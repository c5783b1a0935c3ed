"""Searching settings from Python: ``for looked in hpcml.tune(...)`` is what ``hpcml tune`` does in the foreground."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path, PurePath
from typing import Literal, TypeVar

from hpcml.api.store import Runs, Store, open_store
from hpcml.api.submission import program_words
from hpcml.commands.status import poll_interval_s
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.run import LoggedReporter
from hpcml.commands.tune.look import Looked, look, looks
from hpcml.commands.tune.study import define
from hpcml.config.from_python import argument_word, arguments, setting_word, with_metrics
from hpcml.errors import require
from hpcml.model.choices import Goal
from hpcml.model.search import PrunerName, SamplerName, Search

ChoiceT = TypeVar("ChoiceT", bound=Enum)


def tune(  # noqa: PLR0913 - each an option of the command
    *words: str,
    search: Mapping[str, str],
    settings: Mapping[str, object] | None = None,
    program: str | Sequence[str | PurePath] | None = None,
    metric: str | None = None,
    runs: int = 20,
    in_flight: int = 4,
    sampler: str = "tpe",
    prune: str = "none",
    partial: bool = False,
    until: str | None = None,
    seed: int = 0,
    store: Store | None = None,
) -> Study:
    """Begin the study that ``hpcml tune`` would with these words, or go on with it; nothing is submitted yet.

    *search* has a space for each setting that is searched: ``{"args.lr": "log(1e-4..1e-1)", "args.width": "{64,96}"}``;
    *words*, *settings* and *program* are as for `hpcml.compose`. The others are the options of the command, *seed* that
    of the sampler. Raises `hpcml.errors.ConfigError` where the command would refuse.

        study = hpcml.tune("model=mnist_cnn", search={"training.learning_rate": "log(1e-4..1e-1)"}, runs=20)
        for looked in study:
            print(looked.submitted, looked.under_way)
        print(study.best(5))
    """
    settings, behind = settings or {}, None if program is None else program_words(program)
    given = {} if behind is None else arguments(settings, {})
    typed = [*words, *(setting_word(key, value) for key, value in settings.items() if key not in given)]
    typed += [argument_word(key, values, is_sweep=False) for key, (_, values) in given.items()]
    typed += [f"{key}={space}" for key, space in search.items()]
    if metric is not None:
        typed = with_metrics(typed, [metric], is_printed=behind is not None)
    store = store or open_store()
    defined, remarks = define(
        Search(
            project=str(Path.cwd()),
            settings=typed,
            program=behind,
            runs=runs,
            in_flight=in_flight,
            sampler=_chosen(SamplerName, sampler, "sampler"),
            pruner=_chosen(PrunerName, prune, "prune"),
            takes_partial=partial,
            until=until,
            seed=seed,
            command_line=["hpcml", "tune", *typed, *([] if behind is None else ["--", *behind])],
        ),
        store.places,
        environ=os.environ,
    )
    return Study(defined, store, remarks)


class Study:
    """A search that is looked at again and again; iterating over it goes on until nothing is left to do."""

    def __init__(self, search: Search, store: Store, remarks: Sequence[str]) -> None:
        self.search = search
        self.remarks = list(remarks)
        self._store = store
        self._told = LoggedReporter()

    @property
    def name(self) -> str:
        """The experiment of its runs, by which ``hpcml tune --again`` knows it."""
        return self.search.study

    def look(self) -> Looked:
        """Read what ended, and submit what is missing, once."""
        return look(self._store.places, *self._how, environ=os.environ, interval_s=poll_interval_s(os.environ))

    def __iter__(self) -> Iterator[Looked]:
        """Look again and again; the last has nothing under way, or says in `trouble` why nothing more is submitted."""
        return looks(self._store.places, *self._how, environ=os.environ, interval_s=poll_interval_s(os.environ))

    @property
    def _how(self) -> tuple[Backends, Search, LoggedReporter]:
        return Backends.here(self._store.places, os.environ), self.search, self._told

    def runs(self) -> Runs:
        """Return the records of all its runs."""
        return self._store.runs(experiment=self.name)

    def best(self, count: int = 1) -> Runs:
        """Return the best runs, as `Store.best` does; the winner among many is lucky in part."""
        goal: Literal["max", "min"] = "max" if self.search.goal is Goal.max else "min"
        return self._store.best(f"experiment={self.name}", metric=self.search.metric, goal=goal, count=count)


def _chosen(kind: type[ChoiceT], word: str, name: str) -> ChoiceT:
    require(word in kind.__members__, f"{name}={word!r}: choose {', '.join(kind.__members__)}")
    return kind[word]
