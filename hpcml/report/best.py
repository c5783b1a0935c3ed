"""`hpcml runs --best`: the best runs by a metric as table, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType

from hpcml.codec import encode
from hpcml.model.query_results import Ranked, Ranking
from hpcml.report.render.data import json_text
from hpcml.report.render.rows import value_csv, value_markdown, value_table
from hpcml.report.runs import name_heading, name_words, precision_words, short_uid
from hpcml.report.text import number


def ranking_table(ranking: Ranking, *, console: Console) -> RenderableType:
    """Return a table with a line for each run, the best first; with groups, group by group.

    A narrow console leaves out columns, the value never.
    """
    rows = [_words(each, ranking) for each in ranking.ranked]
    return value_table(_headings(ranking), rows, console=console)


def ranking_markdown(ranking: Ranking) -> str:
    """Return the ranking as a Markdown table, with whole uids."""
    rows = [_words(each, ranking, each.run.uid) for each in ranking.ranked]
    return value_markdown(_headings(ranking), rows)


def ranking_json(ranking: Ranking) -> str:
    """Return the ranking as one JSON object with every field.

    `ranked` has an object for each run; its `group` has the values of the settings that made the groups, by name,
    and its `settings` those of a few that the candidates differ in.
    `alike_mean` is the mean of the `alike_n` completed runs that differ from it in nothing but their seed: over their
    `alike_seeds` seeds, of which each has the mean of its runs.
    `diverged` names its losses that were no number at the last.
    `candidates` and `without` count the runs that had a value, and those that had none.
    """
    fields = {key: encode(getattr(ranking, key)) for key in ("metric", "goal", "at", "candidates", "without")}
    listed = [
        {
            "place": each.place,
            "group": dict(zip(ranking.by, map(encode, each.group), strict=True)),
            "settings": dict(zip(ranking.differ, map(encode, each.settings), strict=True)),
            "value": each.value,
            "step": each.step,
            "alike_n": each.alike_n,
            "alike_seeds": each.alike_seeds,
            "alike_mean": encode(each.alike_mean),
            "diverged": list(each.diverged),
            **dict(zip(_FIELDS, map(encode, _fields(each)), strict=True)),
        }
        for each in ranking.ranked
    ]
    return json_text({**fields, "by": list(ranking.by), "ranked": listed})


def ranking_csv(ranking: Ranking) -> str:
    """Return the ranking as CSV, one line for each run; a setting that made groups has the column ``group.KEY``.

    One that the candidates differ in has ``setting.KEY``.
    """
    keys = (*(f"group.{key}" for key in ranking.by), *(f"setting.{key}" for key in ranking.differ))
    headings = ("place", *keys, "metric", "value", "step", *_FIELDS, "alike_n", "alike_mean", "alike_seeds", "diverged")
    rows = [
        (
            *(each.place, *each.group, *each.settings, ranking.metric, each.value, each.step),
            *(*_fields(each), each.alike_n, each.alike_mean, each.alike_seeds, ", ".join(each.diverged)),
        )
        for each in ranking.ranked
    ]
    return value_csv(headings, rows)


def ranking_remark(ranking: Ranking) -> str:
    """Return one line on which metric was ranked, which way, and how many runs have it; it stands below the table."""
    which = "the value that a run ended with" if ranking.at == "last" else "the best value that a run ever had"
    without = f"; {ranking.without} without a finite value of it" if ranking.without else ""
    of_what = _averaged(ranking)
    among = (
        f". A best run is lucky among its {of_what}: expect what its settings have on average (hpcml compare)"
        if of_what
        else ""
    )
    counted = "1 run" if ranking.candidates == 1 else f"{ranking.candidates} runs"
    ended = [each for each in ranking.ranked if each.diverged]
    of_ended = (
        f". {len(ended)} of those listed diverged, a loss ended nan or infinite: their value may be from before"
        if ended
        else ""
    )
    return f"{counted} with {ranking.metric}{without}; {ranking.goal} of {which}{among}{of_ended}"


def _averaged(ranking: Ranking) -> str | None:
    """Return of what several have the same settings, so that a mean stands beside a run: seeds, or repeats."""
    if any(each.alike_seeds > 1 for each in ranking.ranked):
        return "seeds"
    return "repeats" if any(each.alike_n > 1 for each in ranking.ranked) else None


_FIELDS = ("uid", "experiment", "name", "precision", "seed", "state")


def _fields(each: Ranked) -> list[object]:
    return [getattr(each.run, name) for name in _FIELDS]


def _headings(ranking: Ranking) -> list[str]:
    named = name_heading(each.run for each in ranking.ranked)
    told = ["run", "experiment", named, "precision", *ranking.differ, "seed", "state", ranking.metric, "at step"]
    averaged = _averaged(ranking)
    mean = [f"its {averaged}' mean"] if averaged else []
    return ["", *ranking.by, *told, *mean, *(["diverged"] if _any_diverged(ranking) else [])]


def _any_diverged(ranking: Ranking) -> bool:
    return any(each.diverged for each in ranking.ranked)


def _words(each: Ranked, ranking: Ranking, uid: str | None = None) -> Sequence[object]:
    run, averaged = each.run, _averaged(ranking)
    named = name_heading(other.run for other in ranking.ranked)
    who = (uid or short_uid(run.uid), run.experiment, name_words(run, named), precision_words(run))
    settings = (
        f"{value:g}" if isinstance(value, float) else value for value in each.settings
    )  # no more digits than typed
    n = each.alike_n if averaged == "repeats" else each.alike_seeds
    mean = [f"{number(each.alike_mean)} of {n}" if n else ""] if averaged else []
    ended = [", ".join(each.diverged)] if _any_diverged(ranking) else []
    return (each.place, *each.group, *who, *settings, run.seed, run.state.value, each.value, each.step, *mean, *ended)
