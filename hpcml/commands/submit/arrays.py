"""Dividing runs among job arrays, so that no array is too large and no more runs than asked for go at once.

Pure functions of numbers; `batches` applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One array, or plain job: *count* elements of a group, of which *at_once* may run at once (None: all).

    *after* is the number of the part, counted through all groups, that has to end before this one begins.
    """

    count: int
    at_once: int | None = None
    after: int | None = None


def divide(sizes: Sequence[int], *, largest: int | None, at_once: int | None) -> list[list[Part]]:
    """Divide groups of *sizes* elements, none empty, into parts of *largest* or fewer; return the parts of each group.

    Of all parts together never more than *at_once* elements run at once (None: no limit). A scheduler limits one array
    only, so each array gets a share of the limit, and as many elements as its share can do while the others do theirs:
    arrays that take equally long waste nothing. Where there are more arrays than that, they stand in *at_once* lines,
    and each begins after the one before it, one element at a time.
    """
    fewest = [_quotient_up(size, largest or size) for size in sizes]
    if at_once is None or sum(fewest) == 1:
        return [[Part(count=count, at_once=at_once) for count in _cut(size, largest or size)] for size in sizes]
    if sum(fewest) > at_once:
        return _in_lines([_even(size, [1] * parts) for size, parts in zip(sizes, fewest, strict=True)], at_once)
    shares = _shares(sizes, fewest, at_once)
    return [
        _side_by_side(size, share, parts, largest or size)
        for size, share, parts in zip(sizes, shares, fewest, strict=True)
    ]


def _cut(size: int, largest: int) -> list[int]:
    return [min(largest, size - first) for first in range(0, size, largest)]


def _side_by_side(size: int, share: int, parts: int, largest: int) -> list[Part]:
    """Return as few parts as can be made in proportion to their shares; with a share of one each, all of them fit."""
    while True:
        shares = _even(share, [1] * parts)
        counts = _even(size, shares)
        if max(counts) <= largest:
            return [Part(count=count, at_once=own) for count, own in zip(counts, shares, strict=True)]
        parts += 1


def _in_lines(counts: Sequence[Sequence[int]], lines: int) -> list[list[Part]]:
    """Put each part at the end of the line that has the least to do."""
    waiting, last = [0] * lines, [None] * lines  # type: tuple[list[int], list[int | None]]
    divided: list[list[Part]] = []
    number = 0
    for group in counts:
        divided.append([])
        for count in group:
            line = waiting.index(min(waiting))
            divided[-1].append(Part(count=count, at_once=1, after=last[line]))
            waiting[line] += count
            last[line] = number
            number += 1
    return divided


def _shares(sizes: Sequence[int], fewest: Sequence[int], at_once: int) -> list[int]:
    """Give each group at least *fewest* of *at_once*, and the rest to who has the most elements for each of its own."""
    shares = list(fewest)
    for _ in range(min(at_once, sum(sizes)) - sum(shares)):
        most = max(range(len(sizes)), key=lambda group: sizes[group] / shares[group])
        shares[most] += 1
    return shares


def _even(total: int, weights: Sequence[int]) -> list[int]:
    """Cut *total* into whole numbers in proportion to *weights*, none more than one away from it."""
    ends = [total * end // sum(weights) for end in accumulate(weights, initial=0)]
    return [end - begin for begin, end in pairwise(ends)]


def _quotient_up(size: int, largest: int) -> int:
    return -(-size // largest)
