"""What runs on a node: the agent of one run, or of several that share a job and take turns in it.

``python -m hpcml.agent.main PATH`` needs PATH, a run directory or a manifest in it, and nothing else: no Hydra, no
database, no network. With ``--batch FILE`` the runs are those that FILE lists for this job's array index.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcml.agent import history
from hpcml.agent.attempt import Ended, carry_out
from hpcml.agent.inbox import Inbox
from hpcml.agent.turn import Turn, read_element, read_turn
from hpcml.errors import HpcmlError

_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the agent for what the words name; return the exit status of the workload."""
    words = sys.argv[1:] if arguments is None else arguments
    inbox = Inbox()
    with inbox.listening():
        try:
            element = read_element(words, os.environ)
        except HpcmlError as error:
            return _complain(error)
        status = 0
        for source in element.sources:
            ended = _run(source, element.pack, inbox, os.environ)
            status = _worse(status, ended, is_alone=element.pack is None)
            if ended.interrupted or (element.pack is not None and inbox.asks_to_end()):
                break  # what has not begun stays as it was: the scheduler's word decides
        return status


def _run(source: Path, pack: str | None, inbox: Inbox, environ: Mapping[str, str]) -> Ended:
    try:
        turn = read_turn(source, pack, environ)
        if _is_over(turn):
            return Ended(status=0)
        return carry_out(turn, inbox, environ)
    except (HpcmlError, OSError) as error:
        return Ended(status=_complain(error))


def _is_over(turn: Turn) -> bool:
    return turn.pack is not None and history.is_over(turn.run_dir, turn.pack, comes_back=turn.is_local)


def _worse(status: int, ended: Ended, *, is_alone: bool) -> int:
    """Return the exit status after one more run: the first that is no success stands for all that share the job."""
    if ended.waits and not is_alone:
        return status  # it goes on by itself, and is no failure of this job
    return status or ended.status


def _complain(error: Exception) -> int:
    sys.stderr.write(f"hpcml agent: {error}\n")
    return _USAGE


if __name__ == "__main__":
    sys.exit(main())
