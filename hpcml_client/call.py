"""Calls the function of a run that `hpcml.Executor` submitted: ``python -m hpcml_client.call``, in its job.

The call is submitit's pickle in the run directory, and so is the result; the Python of the job needs submitit.
"""

from __future__ import annotations

import contextlib
import glob
import numbers
import os
import traceback
from typing import Any

from hpcml_client.client import Ranks, connect, ranks_of

_RESULT = "result"  # what a metric is called that is all that a function returned


def main() -> None:
    """Call the function, record the numbers that it returned, and leave its result, or its traceback.

    Of several processes the first leaves them. What the function raises ends the program.
    """
    from submitit.core import utils  # no other program needs it

    run_dir, ranks = os.environ["HPCML_RUN_DIR"], ranks_of(os.environ)
    result_file = os.path.join(run_dir, "result.pkl")

    def leave(outcome: str, result: object) -> None:
        if ranks.rank == 0:
            utils.cloudpickle_dump((outcome, result), f"{result_file}.tmp")
            os.replace(f"{result_file}.tmp", result_file)

    if ranks.rank == 0:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(result_file)  # of an earlier attempt
    try:
        result = utils.DelayedSubmission.load(os.path.join(run_dir, "call.pkl")).result()
        _report(result, run_dir, ranks)
        leave("success", result)
    except Exception:
        leave("error", traceback.format_exc())
        raise


def _report(result: Any, run_dir: str, ranks: Ranks) -> None:  # noqa: ANN401 - whatever was returned
    """Record a number as the metric ``result`` and those of a dict by their names, where the function reported none."""
    attempt = os.environ.get("HPCML_ATTEMPT", "0")
    if ranks.rank != 0 or glob.glob(os.path.join(glob.escape(run_dir), "journal", f"{attempt}-rank0*.jsonl")):
        return
    returned = result if isinstance(result, dict) else {_RESULT: result}
    found = {
        name: value
        for name, value in returned.items()
        if isinstance(name, str) and name and not isinstance(value, bool) and isinstance(value, numbers.Real)
    }
    if found:
        connect().metrics(found)


if __name__ == "__main__":
    main()
