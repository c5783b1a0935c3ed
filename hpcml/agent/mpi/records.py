"""What the ranks of an MPI job and the agents of its nodes tell each other, as files of the run's directory.

A launcher starts the ranks, so that no agent is their parent: `hpcml.agent.mpi.rank` stands between, and leaves here
who each rank is and how it ended. The agent of a node reads it to signal the ranks of its node, that of the first node
also to say which rank failed first, since launchers answer with codes of their own (srun: 143 for a rank's 9).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcml.agent.outcome import GOOD, OBEYED, Outcome, how
from hpcml.model.state import State
from hpcml.runs.atomic import write_text
from hpcml.runs.liveness import Liveness, ProcessIdentity, liveness_of
from hpcml.runs.private import make_folder

_ENDED_BY_OTHERS = (*OBEYED, -signal.SIGKILL, 128 + signal.SIGKILL)
_END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a rank ended: its exit code as `subprocess` says it, when (unix seconds, by its node's clock), and where."""

    code: int
    at_s: float
    host: str
    reason: str | None = None  # why it did not start


@dataclass(slots=True)
class Records:
    """The files of one attempt's ranks in *folder*, which all nodes see."""

    folder: Path
    _known: dict[int, tuple[int, ProcessIdentity]] = field(default_factory=dict)  # of this node: rank -> session

    def began(self, rank: int, node: int, pid: int) -> None:
        """Write down that *rank*, on node number *node*, is the process *pid*, which leads a session of its own."""
        make_folder(self.folder)
        details = {"node": node, **ProcessIdentity.of_process(pid).as_details()}
        write_text(self.folder / f"rank{rank}.json", json.dumps(details))

    def ended(self, rank: int, end: RankEnd) -> None:
        """Write down how *rank* ended."""
        make_folder(self.folder)
        text = {"code": end.code, "at_s": end.at_s, "host": end.host, "reason": end.reason}
        write_text(self.folder / f"rank{rank}.{_END}", json.dumps(text))

    def sessions_of(self, node: int) -> set[int]:
        """Return the sessions of the ranks of *node* that live, as seen from here.

        A rank whose process cannot be seen (launchers may place ranks on another node than planned) is left out.
        """
        for rank, told in self._read(".json").items():
            identity = ProcessIdentity.from_details(told)
            if rank not in self._known and told.get("node") == node and identity is not None:
                self._known[rank] = (identity.pid, identity)
        return {pid for pid, identity in self._known.values() if liveness_of(identity) is Liveness.ALIVE}

    def ends(self) -> dict[int, RankEnd]:
        """Return how the ranks ended that have ended."""
        found = {}
        for rank, told in self._read(f".{_END}").items():
            with suppress(KeyError, TypeError, ValueError):
                found[rank] = RankEnd(
                    code=int(told["code"]),
                    at_s=float(told["at_s"]),
                    host=str(told["host"]),
                    reason=told.get("reason"),
                )
        return found

    def finish(self, code: int) -> None:
        """Tell the other nodes that the launcher has ended, and what their part of the attempt ends with."""
        make_folder(self.folder)
        write_text(self.folder / _END, f"{code}\n")

    def finished(self) -> int | None:
        """Return what `finish` said; None: not yet. The folder is read anew, which a network file system remembers."""
        with suppress(OSError, ValueError):
            if _END in os.listdir(self.folder):  # noqa: PTH208
                return int((self.folder / _END).read_text(encoding="ascii"))
        return None

    def _read(self, suffix: str) -> dict[int, Mapping[str, Any]]:
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 - as above
        except OSError:
            return {}
        found: dict[int, Mapping[str, Any]] = {}
        for name in names:
            number = name.removeprefix("rank").removesuffix(suffix)
            if name == f"rank{number}{suffix}" and number.isdecimal():
                with suppress(OSError, ValueError):
                    told = json.loads((self.folder / name).read_text(encoding="utf-8"))
                    if isinstance(told, dict):
                        found[int(number)] = told
        return found


def codes_of(launcher: int, ends: Mapping[int, RankEnd], count: int) -> list[int]:
    """Return the exit codes of all *count* ranks, given the launcher's: that of a rank that left no word is guessed.

    Where some rank failed, the launcher has ended the others (SIGTERM); where none did, they ended as the launcher.
    Nothing is known of any: the launcher's own code stands alone.

    >>> codes_of(137, {0: RankEnd(code=9, at_s=1.0, host="a")}, 2)
    [9, -15]
    """
    if not ends:
        return [launcher]
    has_failed = any(end.code not in GOOD for end in ends.values())
    other = -signal.SIGTERM if has_failed else launcher
    codes = [ends[rank].code if rank in ends else other for rank in range(count)]
    return codes if has_failed or launcher in GOOD or len(ends) < count else [launcher]


def named(outcome: Outcome, ends: Mapping[int, RankEnd], *, launcher: str, said: str) -> Outcome:
    """Return a failed *outcome* with the rank that failed first, and its node, as its reason.

    Where no rank failed, *launcher* did: the first line that it *said* is added. Where it ended all that failed, after
    one had left, that one is named; a SIGKILL that comes first may as well be that of a kernel without memory.
    """
    if outcome.state is not State.FAILED or outcome.interrupted or not outcome.codes:
        return outcome
    failed = {rank: end for rank, end in ends.items() if end.code not in GOOD}
    own = {rank: end for rank, end in failed.items() if end.code not in _ENDED_BY_OTHERS}
    left = {rank: end for rank, end in ends.items() if end.code in GOOD}
    if failed and left and not own and _first(failed)[1].code in OBEYED and _first(ends)[0] in left:
        rank, end = _first(left)
        early = f"rank {rank} on {end.host} left with exit status {end.code}, without MPI_Finalize?"
        return replace(outcome, reason=f"{early} {launcher} then ended the others")
    own = own or failed
    if not own:
        first = next((line.strip() for line in said.splitlines() if line.strip(" -\t")), "")
        words = [f"{launcher}: {outcome.reason}", *([first[:300]] if first else [])]
        return replace(outcome, reason=": ".join(words))
    rank, end = _first(own)
    reason = f"rank {rank} on {end.host}: {end.reason or how(end.code)}"
    code, number = (end.code, None) if end.code >= 0 else (None, -end.code)
    return replace(outcome, reason=reason, exit_code=code, signal=number)


def _first(ends: Mapping[int, RankEnd]) -> tuple[int, RankEnd]:
    return min(ends.items(), key=lambda item: (item[1].at_s, item[0]))


def wait_for_end(records: Records, *, pause_s: float = 0.5) -> int:
    """Wait until the first node's agent says how the MPI job ended; return that."""
    while (code := records.finished()) is None:
        time.sleep(pause_s)
    return code
