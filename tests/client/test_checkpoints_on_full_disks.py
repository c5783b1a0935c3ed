from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpointing import connect, events, names, spawn, text

import hpcml_client


def test_on_a_full_disk_the_one_before_is_kept_and_the_program_goes_on(tmp_path: Path) -> None:
    script = """
import pathlib, resource
import hpcml_client
with hpcml_client.connect() as run:
    checkpoints = run.checkpoints()
    assert checkpoints.save(1, lambda path: pathlib.Path(path).write_bytes(bytes(1000)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # the journal still has room
    write = lambda path: pathlib.Path(path).write_bytes(bytes(200_000))
    print(checkpoints.save(2, write), checkpoints.save(3, write), checkpoints.latest().step)
"""
    process = spawn(script, HPCML_RUN_DIR=str(tmp_path))

    stdout, stderr = process.communicate(timeout=300)

    assert (process.returncode, stdout) == (0, "False False 1\n"), stderr
    reason = "OSError: [Errno 27] File too large"
    assert stderr == (
        f"hpcml: no checkpoint was saved after step 2: {reason}; the one before is kept, and the program goes on\n"
    )
    assert events(tmp_path, "checkpoint_failed") == [{"step": 2, "reason": reason}]
    assert names(tmp_path) == ["step1-attempt0"]


def test_a_disk_that_is_really_full_is_survived(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=256k tmpfs {folder}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small disk here")
    script = """
import pathlib
import hpcml_client
with hpcml_client.connect() as run:
    checkpoints = run.checkpoints()
    print(*(checkpoints.save(step, lambda path: pathlib.Path(path).write_bytes(bytes(size)))
            for step, size in ((1, 100_000), (2, 200_000))), checkpoints.latest().step)
    print(*sorted(path.name for path in pathlib.Path(checkpoints.directory).iterdir()))
"""
    environ = {**os.environ, "HPCML_RUN_DIR": str(tmp_path)}

    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, script],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "True False 1\nstep1-attempt0\n"), done.stderr
    assert events(tmp_path, "checkpoint_failed")[0]["reason"] == "OSError: [Errno 28] No space left on device"


@pytest.mark.torch
def test_a_full_disk_is_understood_from_torch_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
import resource, torch
import hpcml_client
with hpcml_client.connect() as run:
    checkpoints = run.checkpoints()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    print(checkpoints.save(1, lambda path: torch.save(torch.zeros(100_000), path)), checkpoints.latest())
"""
    process = spawn(script, HPCML_RUN_DIR=str(tmp_path))

    stdout, stderr = process.communicate(timeout=300)

    assert (process.returncode, stdout) == (0, "False None\n"), stderr
    assert names(tmp_path) == []


def test_a_disk_that_was_full_is_tried_again_later(tmp_path: Path) -> None:
    now = 0.0
    with connect(tmp_path) as run:
        run.checkpoints()
        made = hpcml_client.Checkpoints(run, run._checkpoints[0]._files, now=lambda: now)
        (tmp_path / "checkpoints").write_text("in the way")
        assert not made.save(1, text())
        (tmp_path / "checkpoints").unlink()
        assert not made.save(2, text())
        now = 10.0
        assert made.save(3, text())
        made.close()
