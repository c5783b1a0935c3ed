"""A run put back into the queue from inside its job: ``python -P -m hpcml.schedulers.requeue SCHEDULER MANIFEST``.

The agent runs this, by the variable HPCML_REQUEUE of the job script, after the workload has left at a checkpoint. Where
the run is another job from then on, what that is called is printed, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hpcml.errors import HpcmlError
from hpcml.paths import begin_in_utf8
from hpcml.runs.layout import run_dir_of
from hpcml.runs.manifest import read_to_execute
from hpcml.schedulers.contract import Job, Ticket
from hpcml.schedulers.local.jobs import put_back
from hpcml.schedulers.names import THIS_MACHINE, cluster_schedulers
from hpcml.schedulers.registry import open_submitter


def main(arguments: Sequence[str] | None = None) -> int:
    """Put the run of the manifest that the last word names back into the queue; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        ticket = _put_back(words, dict(os.environ))
    except HpcmlError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if ticket is not None:
        said = {name: asdict(ticket)[name] for name in ("scheduler", "job_id", "array_index", "job_name")}
        said |= {} if ticket.job_cluster is None else {"job_cluster": ticket.job_cluster}
        sys.stdout.write(f"{json.dumps(said)}\n")
    return 0


def _put_back(words: Sequence[str], environ: Mapping[str, str]) -> Ticket | None:
    """Return the ticket of the job that carries on, or None where it is this job."""
    is_alone = "--alone" in words
    match [word for word in words if word != "--alone"]:
        case [scheduler, manifest]:
            job = _job(Path(manifest))
            if scheduler == THIS_MACHINE:
                return put_back(job, environ, is_alone=is_alone)
            submitter = open_submitter(scheduler, submissions=job.run_dir.path)  # by the run's own script
            return submitter.put_back(job, environ, is_alone=is_alone)
        case _:
            known = (THIS_MACHINE, *cluster_schedulers())
            raise HpcmlError(f"usage: python -m hpcml.schedulers.requeue {'|'.join(known)} [--alone] MANIFEST")


def _job(manifest: Path) -> Job:
    retry = int(manifest.stem) if manifest.parent.name == "retries" else 0
    return Job(run_dir=run_dir_of(manifest), manifest=read_to_execute(manifest), retry=retry)


if __name__ == "__main__":
    begin_in_utf8()
    sys.exit(main())
