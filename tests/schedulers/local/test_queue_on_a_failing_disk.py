"""A queue of this machine whose file system is away for a moment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hpcml.schedulers.local.queue import LocalBatch, Queued, write_batch
from hpcml.schedulers.local.slots import Need, Pool
from tests.cluster.disk.building import build_failing_disk

DRAIN = "import sys; from hpcml.schedulers.local.queue import drain; drain(sys.argv[1])"


def test_a_queue_outlives_a_moment_in_which_its_files_cannot_be_seen(tmp_path: Path) -> None:
    home = tmp_path / "home"
    runs, folder = [home / "runs" / "default" / name for name in ("a", "b")], home / "submissions" / "token"
    for place in (*runs, folder):
        place.mkdir(parents=True, mode=0o700)
    for run in runs:
        (run / "run.json").touch()
        (run / "job.sh").write_text(f"echo {run.name} >> {tmp_path}/executed")
    jobs = [
        Queued(sources=[str(run / "run.json")], script=str(run / "job.sh"), need=Need(cores=1, gpus=0)) for run in runs
    ]
    batch = LocalBatch(jobs=jobs, lock_dir=str(tmp_path / "locks"), pool=Pool(cores=1, gpus=[]), max_parallel=1)
    write_batch(folder, batch)
    away = tmp_path / "away"
    away.touch()
    disk = {
        "LD_PRELOAD": str(build_failing_disk(tmp_path)),
        "FAILS_STAT": str(runs[1] / "run.json"),
        "FAILS_WHILE": str(away),
    }

    queue = subprocess.Popen(
        [sys.executable, "-c", DRAIN, str(folder)], env={**os.environ, **disk}, stderr=subprocess.DEVNULL
    )
    time.sleep(3.0)
    before = queue.poll()
    away.unlink()

    assert before is None
    assert queue.wait(300) == 0
    assert (tmp_path / "executed").read_text() == "a\nb\n"
