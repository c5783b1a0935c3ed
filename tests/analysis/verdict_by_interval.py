"""The verdict of one row by its interval, which that by p values has to agree with."""

from __future__ import annotations

from hpcml.analysis.compare.result import Interval, Verdict


def verdict(ci90: Interval | None, margin: float | None, *, higher_is_better: bool) -> Verdict:
    """Return what the 90 % interval of arm minus reference allows to say, as docs/statistics.md has it.

    *margin* is the smallest difference that matters, in the unit of the metric, fixed before the results were known;
    None gives "no margin". In this order, for a metric of which more is better:

    - equivalent: the whole interval lies inside ±margin
    - better: its low end is above 0
    - non-inferior: its low end is above -margin
    - worse by more than the margin: its high end is below -margin
    - worse: its high end is below 0
    - inconclusive: none of these, or no interval (None)
    """
    if margin is None or ci90 is None:
        return "no margin" if margin is None else "inconclusive"
    low, high = (ci90.low, ci90.high) if higher_is_better else (-ci90.high, -ci90.low)
    if -margin < low and high < margin:
        return "equivalent"
    if low > 0:
        return "better"
    if low > -margin:
        return "non-inferior"
    if high >= 0:
        return "inconclusive"
    return "worse by more than the margin" if high < -margin else "worse"
