"""The words of ``hpcml tune``: which of them are axes of the space, and the words of one point of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.config.command_line import MULTIRUN
from hpcml.config.program import settings_in
from hpcml.errors import ConfigError, require
from hpcml.model.record_keys import ARGUMENTS
from hpcml.model.search import Axis, Value, parse_axis

_SETTING = re.compile(r"(?s)(?P<prefix>[+]{0,2}(?P<key>[^\s=+~-][^\s=]*)=)(?P<value>.*)")
_ARGUMENT = re.compile(r"(?:workload\.)?args\.")
_SEED = "seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the value of an axis stands: in the word *at* of the program, or of the settings, behind `prefix`."""

    axis: Axis
    is_in_program: bool
    at: int
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchWords:
    """The words in front of the ``--`` and behind it (None without), with the axes in them."""

    settings: Sequence[str]
    program: Sequence[str] | None
    places: Sequence[_Place]

    @property
    def axes(self) -> list[Axis]:
        """The axes, in the order of the words."""
        return [place.axis for place in self.places]

    def at(self, point: Mapping[str, Value | None]) -> tuple[list[str], list[str] | None]:
        """Return the words of ``hpcml run`` for *point*, which has a value for each axis by its key.

        A setting whose value is None is left out, so that its default counts; the program's words need theirs.
        """
        settings: list[str | None] = list(self.settings)
        program = None if self.program is None else list(self.program)
        for place in self.places:
            value = point.get(place.axis.key)
            word = None if value is None else f"{place.prefix}{value}"
            if not place.is_in_program:
                settings[place.at] = word
            elif word is not None and program is not None:
                program[place.at] = word
        return [word for word in settings if word is not None], program


def read_search(settings: Sequence[str], program: Sequence[str] | None) -> SearchWords:
    """Return the axes of the words of ``hpcml tune``.

    A setting ``KEY=SPACE`` or ``args.NAME=SPACE`` in front of the ``--``, and a setting of the program behind it
    (``--lr SPACE``, ``--lr=SPACE``, ``lr=SPACE``), are axes where *SPACE* is one of the spellings of `parse_axis`.

    Raises `ConfigError` where there is none, where two have one name, where the seed is one, and for ``-m``.
    """
    require(MULTIRUN.isdisjoint(settings), "-m sweeps a list, and hpcml tune chooses each point: leave it out")
    places = []
    for at, word in enumerate(settings):
        if found := _SETTING.fullmatch(word):
            key = _ARGUMENT.sub(ARGUMENTS, found["key"], count=1)
            if axis := parse_axis(key, found["value"], word=word):
                places.append(_Place(axis=axis, is_in_program=False, at=at, prefix=found["prefix"]))
    for setting in settings_in(program) if program else ():
        word = f"--{setting.name} {setting.value}"
        if axis := parse_axis(f"{ARGUMENTS}{setting.name}", setting.value, word=word):
            places.append(_Place(axis=axis, is_in_program=True, at=setting.at, prefix=setting.in_front))
    require(
        bool(places),
        "nothing is searched: write a space instead of a value, as --lr 'log(1e-4..1e-1)', --width '{64,128}' or "
        "training.steps=100..500",
    )
    counts = Counter(place.axis.name for place in places)
    if again := next((name for name, count in counts.items() if count > 1), None):
        raise ConfigError(
            f"{again} is searched twice: write args.{again}=SPACE in front of the --, {{{again}}} behind it"
        )
    require(
        _SEED not in counts, "seed: seeds are not searched, they repeat a point: hpcml tune --confirm takes fresh ones"
    )
    return SearchWords(settings=settings, program=program, places=places)
