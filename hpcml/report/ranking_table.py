"""The best runs by a metric, in every form."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType

from hpcml.answers import Ranked, Ranking
from hpcml.codec import encode
from hpcml.report.run_words import precision_words, short_uid, title
from hpcml.report.value_table import as_json, value_csv, value_markdown, value_table


def ranking_table(ranking: Ranking, *, console: Console) -> RenderableType:
    """Return a line for each run, the best first; with groups, group by group."""
    rows = [_words(each) for each in ranking.ranked]
    return value_table(_headings(ranking), rows, console=console, dispensable=_DISPENSABLE)


def ranking_markdown(ranking: Ranking) -> str:
    """Return the same as Markdown, with whole ids."""
    rows = [_words(each, each.run.uid) for each in ranking.ranked]
    return value_markdown(_headings(ranking), rows)


def ranking_json(ranking: Ranking) -> str:
    """Return all of the ranking as one JSON object."""
    fields = {key: encode(getattr(ranking, key)) for key in ("metric", "goal", "at", "candidates", "without")}
    listed = [
        {
            "place": each.place,
            "group": dict(zip(ranking.by, map(encode, each.group), strict=True)),
            "value": each.value,
            "step": each.step,
            **dict(zip(_FIELDS, map(encode, _fields(each)), strict=True)),
        }
        for each in ranking.ranked
    ]
    return as_json({**fields, "by": list(ranking.by), "ranked": listed})


def ranking_csv(ranking: Ranking) -> str:
    """Return one line for each run."""
    headings = ("place", *(f"group.{key}" for key in ranking.by), "metric", "value", "step", *_FIELDS)
    rows = [(each.place, *each.group, ranking.metric, each.value, each.step, *_fields(each)) for each in ranking.ranked]
    return value_csv(headings, rows)


def ranking_remark(ranking: Ranking) -> str:
    """Return, in one line, what was ranked and how."""
    which = "the value that a run ended with" if ranking.at == "last" else "the best value that a run ever had"
    without = f"; {ranking.without} without" if ranking.without else ""
    return f"{ranking.candidates} runs with {ranking.metric}{without}; {ranking.goal} of {which}"


_DISPENSABLE = ("experiment", "name", "at step", "state", "seed")
_FIELDS = ("uid", "experiment", "name", "precision", "seed", "state")


def _fields(each: Ranked) -> list[object]:
    return [getattr(each.run, name) for name in _FIELDS]


def _headings(ranking: Ranking) -> list[str]:
    return ["", *ranking.by, "run", "experiment", "name", "precision", "seed", "state", ranking.metric, "at step"]


def _words(each: Ranked, uid: str | None = None) -> Sequence[object]:
    run = each.run
    who = (uid or short_uid(run.uid), run.experiment, title(run), precision_words(run), run.seed, run.state.value)
    return (each.place, *each.group, *who, each.value, each.step)
