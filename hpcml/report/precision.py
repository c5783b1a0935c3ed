"""The precision of one run in words: what was asked for, what its program multiplied, and what a probe shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcml.model.choices import Numerics
from hpcml.model.precision import EVIDENCE, PROBED_AS, PrecisionName, contradicts
from hpcml.model.records import RunRecord, StoredEvent
from hpcml.report.runs import is_native
from hpcml.units import spell_percent
from hpcml_client.observed import COMPILED, NOT_OBSERVED, OBSERVED, UNKNOWN, Share, Window, read_window, shares

_NOTHING_SEEN = {
    NOT_OBSERVED: "nothing: no observer was there (python -I, a cleared environment, or a program without PyTorch)",
    f"{NOT_OBSERVED}: {COMPILED}": (
        "nothing: torch.compile compiled the program, and to observe it would change what it computes"
    ),
}
_LISTED_STEPS = 6
_LISTED_LAYERS = 4


def precision_words(run: RunRecord, events: Sequence[StoredEvent]) -> Iterator[tuple[str, object]]:
    """Yield what is known of the precision of *run*, by name; None for what does not concern it."""
    told = [event for event in events if event.name == "precision_observed"]
    windows = [window for window in (read_window(event.details) for event in told) if window is not None]
    is_probed_too = any(_as_probed(event) for event in told)
    yield from _precision(run, windows, _none_seen(events), is_probed_too=is_probed_too)
    yield from _observed(events, told, windows)


def _steps(events: Sequence[StoredEvent]) -> int | None:
    """Return how many steps the program's optimizer made; None where no observer told at its end."""
    closed = [event.details.get("steps") for event in events if event.name == "precision_observer_closed"]
    return max((steps for steps in closed if isinstance(steps, int)), default=None)


def _none_seen(events: Sequence[StoredEvent]) -> str:
    """Return why no step was seen, where none was: what was seen is told at an observer's end, at the latest."""
    steps = _steps(events)
    if steps is None and any(event.name == "precision_observer" for event in events):
        return "its program made no step, or was killed before what was seen of its steps was read"
    one = "its program made one step, and what is seen lies between two"
    return one if steps == 1 else "none of its program's steps was seen"


def _as_probed(event: StoredEvent) -> object:
    """Return the kinds of product in a window whose format is that of the probe, since TF32 was allowed in both."""
    evidence = event.details.get("evidence")
    return evidence.get("as_probed") if isinstance(evidence, dict) else None


def _precision(
    run: RunRecord, windows: Sequence[Window], none_seen: str, *, is_probed_too: bool
) -> Iterator[tuple[str, object]]:
    is_left = run.precision == PrecisionName.own.name
    yield "requested", f"{run.precision}{'  (nothing: left to the program)' * is_left}"
    differs = contradicts(run.precision, run.precision_effective)
    yield "effective", f"{run.precision_effective or 'not proven'}{'  (not what was requested)' * differs}"
    yield "evidence", _evidence(run, windows, none_seen, is_probed_too=is_probed_too)
    probed = run.facts.get(PROBED_AS)
    if run.facts.get(EVIDENCE) == OBSERVED and probed is not None:
        yield "probed", f"{probed}  (what the device does when asked; the program may do otherwise)"
    if is_left and run.precision_effective is None:
        return  # the program reported nothing of how it computes
    is_told = run.numerics in Numerics.__members__
    doubts = [
        "" if is_told else "the program did not report how it computed: ",
        "its times say nothing about this precision",
    ]
    yield "numerics", run.numerics if is_native(run) else f"{run.numerics}  ({''.join(doubts)})"


def _evidence(run: RunRecord, windows: Sequence[Window], none_seen: str, *, is_probed_too: bool) -> str | None:
    """Return in words what tells the effective precision of *run*, and how far."""
    if run.precision_effective in _NOTHING_SEEN:
        return _NOTHING_SEEN[run.precision_effective]
    if run.precision_effective == UNKNOWN:
        if not windows:
            return f"nothing: {none_seen}"
        if any(window.unknown for window in windows):
            return "its program's products, of which a part is unknown"
        return "its program's products: a probe shows TF32 of less than half of what was allowed it"
    if run.facts.get(EVIDENCE) == OBSERVED:
        with_probe = "; where float32 was allowed to be TF32, a probe under the same switches" * is_probed_too
        return f"its program's products{with_probe}"
    return None if run.precision_effective is None else "a probe: what the program itself multiplied was not observed"


def _observed(
    events: Sequence[StoredEvent], told: Sequence[StoredEvent], windows: Sequence[Window]
) -> Iterator[tuple[str, object]]:
    """Yield what was seen of the program's products: shares by format and layer, what is unknown, and what it cost."""
    if windows:
        steps = sorted({window.step for window in windows})
        listed = ", ".join(map(str, steps[:_LISTED_STEPS])) + (
            f" ... {steps[-1]}" if len(steps) > _LISTED_STEPS else ""
        )
        cost_s = sum(s for event in told if isinstance(s := event.details.get("seconds"), int | float))
        count = f"{len(windows)} window{'s'[: len(windows) != 1]}"
        of = _steps(events)
        yield "observed", f"{count}, to step {listed}{f' of {of}' if of else ''}; {cost_s:.2g} s in all"
        yield "products", "; ".join(_share_words(windows)) or "none was seen"
        unknown = dict.fromkeys(what for window in windows for what in window.unknown)
        yield "unknown", "; ".join(unknown) or None
    probe = next((event.details.get("switches") for event in events if event.name == "precision"), None)
    yield "switches", "; ".join(_flipped(probe, told)) or None
    off = [
        str(event.details["off"]) for event in events if event.name == "precision_observer" and "off" in event.details
    ]
    yield "stopped", "; ".join(dict.fromkeys(off)) or None


def _share_words(windows: Sequence[Window]) -> Iterator[str]:
    """Yield each format's share in each phase, with its largest layers."""
    found: dict[tuple[str, str, bool], list[Share]] = {}
    for share in shares(windows):
        found.setdefault((share.format, share.phase, share.emulated), []).append(share)
    for (form, phase, is_emulated), of in sorted(found.items(), key=lambda item: -sum(one.share for one in item[1])):
        names = [one.layer for one in of if one.layer is not None]
        more = f" and {len(names) - _LISTED_LAYERS} more" if len(names) > _LISTED_LAYERS else ""
        layers = f": {', '.join(names[:_LISTED_LAYERS])}{more}" if names else ""
        total = spell_percent(sum(one.share for one in of))
        yield f"{total} {form}{' emulated' * is_emulated} {phase}{layers}"


def _flipped(probe: object, told: Sequence[StoredEvent]) -> Iterator[str]:
    """Yield the switches that stood otherwise in a window than when the probe measured."""
    if not isinstance(probe, dict):
        return
    seen: dict[str, tuple[object, object]] = {}
    for event in told:
        switches = event.details.get("switches")
        for name, value in switches.items() if isinstance(switches, dict) else ():
            if name in probe and value != probe[name]:
                seen.setdefault(str(name), (value, event.details.get("step")))
    for name, (value, step) in seen.items():
        yield f"{name} was {probe[name]} when probed, and {value} at step {step}"
