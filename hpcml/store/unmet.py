"""Why a selection found nothing: the values asked for that no run of the store has, and what runs have instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from hpcml.model.record_keys import AGE, flag_setting, setting_value
from hpcml.spelling import did_you_mean
from hpcml.store.columns import Keyed
from hpcml.store.conditions import MOMENTS, Condition, Every, Filter, is_missing, meets
from hpcml.store.database import Database
from hpcml.store.settings import values_of

_LISTED = 5  # values; of more only those that are like the one asked for


def unmet_words(store: Database, *, experiment: str | None, conditions: Sequence[Condition]) -> list[str]:
    """Return a line for each value asked for that no run has, be it the *experiment*; none where the store is empty.

    Of *conditions* only what must hold whatever else does is looked at, and of that only what equals a value.
    """
    now = datetime.now()  # noqa: DTZ005 - as in `hpcml.store.query.find_runs`
    with store.reading() as reading:
        values = Keyed(reading, now=now.timestamp())
        told = []
        if experiment is not None:
            names = values("experiment")
            if names and experiment not in names.values():  # which is exact, as the option is
                told.append(f"no run is of the experiment {experiment!r}{_known(experiment, names)}")
        for each in (each for condition in conditions for each in _filters(condition)):
            if each.op != "=" or each.key in (*MOMENTS, AGE, "state"):
                continue
            known = values(each.key)
            is_met = meets(each, now=now)
            if known and not any(map(is_met, known.values())):
                flags = values_of(reading, flag := flag_setting(each.key))
                is_flag = any(is_met(setting_value(flag, value)) for value in flags.values())
                instead = f"; --{each.key} of your program is args.{each}" if is_flag else _known(each.value, known)
                told.append(f"no run has {each}{instead}")
        return told


def _filters(condition: Condition) -> Iterator[Filter]:
    if isinstance(condition, Filter):
        yield condition
    elif isinstance(condition, Every):
        for each in condition.of:
            yield from _filters(each)


def _known(asked: str, known: Mapping[int, Any]) -> str:
    several = [item for value in known.values() for item in (value if isinstance(value, list) else [value])]
    words = sorted({str(value) for value in several if not is_missing(value) and value != ""})
    if 0 < len(words) <= _LISTED:
        return f"; there {'is only' if len(words) == 1 else 'are'} {', '.join(words)}"
    meant = did_you_mean(asked, [word for word in words if not word.replace(".", "").isdecimal()])
    return f"; {meant}" if meant else ""
