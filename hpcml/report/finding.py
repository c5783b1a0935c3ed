"""What a row of a comparison says, as one sentence in plain words: the first thing that a reader sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpcml.analysis.compare.result import Cell, Comparison, Cost, Losses, Row, Verdict
from hpcml.model.told_apart import alike_words
from hpcml.report.comparison_columns import difference_decimals, margin_of, tone_of, unit_of_difference
from hpcml.report.document import Finding
from hpcml.report.text import duration, ratio, to_decimals

_READ_AS_A_LIST = 7  # conclusions: from here on a line for each verdict comes first
_MOST_NAMED = 12  # levels in such a line
_LEAST, _ENOUGH = 3, 5  # seeds: for a verdict at all, and for one that is worth printing
_WORDS: Mapping[Verdict, str] = {
    "identical": "the same values in every seed; did the two compute different things?",
    "equivalent": "no difference that matters",
    "better": "better",
    "non-inferior": "not worse by the margin, and perhaps better",
    "worse by more than the margin": "worse, and by more than the margin",
    "worse": "worse, though perhaps by less than the margin",
    "inconclusive": "these runs cannot tell",
    "no margin": "no verdict, since no margin says which difference matters",
    "no goal": "no verdict, since nothing tells which way is better (--goal max or min)",
    "not proven": "no verdict, since it was not measured in which precision it, or its reference, computed",
    "not as requested": "no verdict, since it, or its reference, was seen to compute in another precision",
}


def sentence(comparison: Comparison, cell: Cell, row: Row) -> str:
    """Return what *row* says: verdict, difference, 90 % interval, margin, and whether the seeds are enough.

    For example: "no difference that matters: -0.006, between -0.020 and +0.009, margin 0.02; 5 seeds".
    """
    numbers, seeds = ", ".join(_interval(cell, row)), _seeds(cell, row)
    return f"{_found(comparison, cell, row)}{f', {numbers}' if numbers else ''}{f'; {seeds}' if seeds else ''}"


def tallied(verdicts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each of *verdicts*, which come with a level, and how many and which levels have it; [] for a few.

    >>> tallied([("better", "a"), *(("worse", name) for name in "bcdefg")])
    [('better', '1 of 7: a'), ('worse', '6 of 7: b, c, d, e, f, g')]
    """
    if len(verdicts) < _READ_AS_A_LIST:
        return []
    levels = {word: [level for each, level in verdicts if each == word] for word, _ in verdicts}
    told = []
    for word, of in levels.items():
        more = len(of) - _MOST_NAMED
        named = f"{', '.join(of[:_MOST_NAMED])} and {more} more" if more > 1 else ", ".join(of)
        told.append((word, f"{len(of)} of {len(verdicts)}: {named}"))
    return told


def findings_of(comparison: Comparison, *, so_far: bool = False) -> Iterator[Finding]:
    """Yield a conclusion for each row but the reference, cell by cell, in the words of `sentence`.

    *so_far*: the verdict of a row of which runs have not ended says that, too. Beside the difference there are the
    ratios of speed and energy, and the time to the target, that are known.
    """
    for cell in comparison.cells:
        for row in cell.rows:
            if row.verdict != "reference":
                found = _finding(comparison, cell, row)
                yield replace(found, verdict=f"{found.verdict}, so far") if so_far and row.awaited else found


def heading(cell: Cell) -> str:
    """Return the settings that all runs of *cell* have in common, in one line; "" where there are none."""
    parts = alike_words(cell.where)
    if cell.batch_size is not None and "training.batch_size" not in cell.where:
        parts.append(f"batch size {cell.batch_size}")
    if cell.device is not None:
        parts.append(f"device {cell.device}")
    return " · ".join(parts)


def of_all(cell: Cell, rows: Sequence[Row]) -> str:
    """Return the margin that *rows* are judged by, and the fewest seeds that one of them has."""
    fewest = min((_n_compared(cell, row) for row in rows if row.n_units), default=None)
    margin = [] if cell.margin is None else [f"margin {margin_of(cell)}"]
    return "; ".join([*margin, *([] if fewest is None else [f"{fewest} {rows[0].unit} or more"])])


def _found(comparison: Comparison, cell: Cell, row: Row) -> str:
    """Return the verdict in words with the difference: "no difference that matters: -0.006"."""
    if row.difference is None:
        difference = f"no {comparison.metric} to compare"
    else:
        number = to_decimals(row.difference.value, difference_decimals(cell), signed=True)
        difference = f"{number}{unit_of_difference(cell)}"
        if row.verdict in ("unstable", "unstable reference"):
            difference = f"survivors differ by {difference}"
    return f"{_verdict(comparison, cell, row)}: {difference}"


def _verdict(comparison: Comparison, cell: Cell, row: Row) -> str:
    """Return the verdict in words; of one that an interval alone does not explain, also the reason."""
    if row.verdict in ("unstable", "unstable reference"):
        reference = next((each for each in cell.rows if each.verdict == "reference"), None)
        lost, other_lost = (_lost(None if each is None else each.losses) for each in (row, reference))
        return f"{row.verdict}: lost {lost} of its {row.unit} to their own doing, {cell.reference} lost {other_lost}"
    if row.verdict_alone is not None:
        alone = _WORDS.get(row.verdict_alone, row.verdict_alone)
        among = "cannot tell" if row.verdict == "inconclusive" else f"{_WORDS.get(row.verdict, row.verdict)},"
        return f"{among} among {comparison.n_tests} rows (Holm); alone it would be: {alone}"
    if row.verdict == "inconclusive" and row.difference is not None and row.difference.has_no_spread:
        return f"no verdict, since the difference is the same for all {row.unit}, and nothing says how certain it is"
    return _WORDS.get(row.verdict, row.verdict)


def _lost(losses: Losses | None) -> str:
    return "an unknown number" if losses is None else f"{losses.n} of {losses.n_ended}"


def _interval(cell: Cell, row: Row) -> Iterator[str]:
    """Yield the ends of the interval that the verdict rests on, and the margin; nothing without a difference."""
    difference = row.difference
    if difference is None:
        return
    if difference.ci90 is not None:
        bounds = difference.ci90.low, difference.ci90.high
        low, high = (to_decimals(end, difference_decimals(cell), signed=True) for end in bounds)
        yield f"between {low} and {high}{unit_of_difference(cell)}"
    if cell.margin is not None:
        yield f"margin {margin_of(cell)}"


def _n_compared(cell: Cell, row: Row) -> int:
    """Return how many seeds, or runs, *row* is judged by: pairs, or those of the arm with fewer."""
    if row.difference is not None and row.difference.paired:
        return row.difference.n_pairs or row.n_units
    return min([row.n_units, *(each.n_units for each in cell.rows if each.verdict == "reference")])


def _seeds(cell: Cell, row: Row) -> str:
    """Return how many seeds, or runs, *row* is judged by, and whether they are too few; "" without any."""
    if row.n_units == 0:
        return ""
    n = _n_compared(cell, row)
    counted = f"{n} {row.unit if n != 1 else row.unit[:-1]}"
    if n < _LEAST:
        return f"{counted}: too few for a verdict, take {_ENOUGH}"
    return counted


def _finding(comparison: Comparison, cell: Cell, row: Row) -> Finding:
    sure = [", ".join(_interval(cell, row)), _seeds(cell, row)]
    return Finding(
        verdict=row.verdict,
        tone=tone_of(row.verdict),
        about=f"{row.level} against {cell.reference}",
        where=heading(cell),
        asked=_asked(comparison, cell, row.level),
        found="; ".join([_found(comparison, cell, row), *_ratios(cell, row)]),
        sure="; ".join(filter(None, sure)),
        doubts=[str(flag) for flag in (*cell.flags, *row.flags) if flag.level != "note"],
    )


def _asked(comparison: Comparison, cell: Cell, level: str | None) -> str:
    """Return "does precision tf32 change val_accuracy by 0.02 or more, against fp32? higher is better"; None: each."""
    by_much = "" if cell.margin is None else f" by {margin_of(cell)} or more"
    which = f"each {comparison.by}" if level is None else f"{comparison.by} {level}"
    return f"does {which} change {comparison.metric}{by_much}, against {cell.reference}? {comparison.way}"


def _work_of(cost: Cost) -> str:
    return "sample" if cost.energy_per_gflop_j is None else "operation"


def _ratios(cell: Cell, row: Row) -> Iterator[str]:
    if row.speed and row.speed.speedup is not None:
        yield f"{ratio(row.speed.speedup, row.speed.speedup_ci95)} times as fast as {cell.reference}"
    if row.cost and row.cost.energy_ratio is not None:
        yield f"{ratio(row.cost.energy_ratio, row.cost.energy_ratio_ci95)} times its energy per {_work_of(row.cost)}"
    race = row.to_target
    if race and race.saved_s is not None:
        when = f"{duration(abs(race.saved_s))} {'sooner' if race.saved_s >= 0 else 'later'} on average"
        yield f"reached {race.target:g} in {race.reached} of {race.n} runs, {when}"
