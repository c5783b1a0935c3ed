"""What an agent journals of an attempt beside what the program reports: how it ended, and trouble of hpcml's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hpcml.agent.outcome import Outcome

Tell = Callable[..., None]


def tell_end(tell: Tell, event: str, outcome: Outcome, **more: object) -> None:
    """Journal *event* with the outcome as its details; *more* is added to them."""
    tell(
        event,
        state=outcome.state.value,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        reason=outcome.reason,
        wall_s=outcome.wall_s,
        checkpointed=outcome.checkpointed,
        **({"stood_still_s": outcome.stood_still_s} if outcome.stood_still_s else {}),
        **more,
    )


class Unharmed:
    """Keeps our own trouble away from the workload: it is journalled, once for each kind, and life goes on."""

    def __init__(self, event: Callable[[str, Mapping[str, object]], None]) -> None:
        self._event = event
        self._told: set[str] = set()

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Do the block, and journal its error, of which *what* is the kind."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the workload must not die of it
            if what not in self._told:
                self._told.add(what)
                self._event("agent_trouble", {"what": what, "error": repr(error)})
