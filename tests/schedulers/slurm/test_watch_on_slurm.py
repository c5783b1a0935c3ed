"""`hpcml watch` beside a real Slurm: what waits and goes there is on the page, and so is how it ended."""

from __future__ import annotations

import shlex
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cluster.slurm.account import Account
from tests.schedulers.slurm.user import Hpcml

pytestmark = pytest.mark.slurm

GOES = "workload.command=bash -c 'while test ! -e {folder}/finish; do sleep 0.2; done'"
START = "from hpcml.cli.main import main; main()"
PATIENCE_S = 120


def fetched(link: str) -> str:
    with urllib.request.urlopen(link, timeout=PATIENCE_S) as answer:  # noqa: S310 - of the page that was started here
        return str(answer.read().decode())


def once(link: str, text: str) -> str:
    """Return the first page that has *text*."""
    give_up_at = time.monotonic() + PATIENCE_S
    while text not in (page := fetched(link)):
        assert time.monotonic() < give_up_at, page
        time.sleep(0.5)
    return page


def test_a_page_follows_an_array_until_all_of_it_has_ended(slurm: Account, folder: Path) -> None:
    hpcml = Hpcml(slurm, folder)
    hpcml.submit("-m", "experiment=watched", "seed=0,1,2", GOES.format(folder=folder))
    said = folder / "link"
    words = shlex.join([str(slurm.python), "-u", "-c", START, "watch", "watched", "--port", "0", "--interval", "1s"])
    environ = {"HPCML_HOME": str(hpcml.home), **hpcml.environ}
    watch = slurm.start(["bash", "-c", f"exec {words} > {said}"], cwd=folder, environ=environ)
    try:
        give_up_at = time.monotonic() + PATIENCE_S
        while not said.exists() or not said.read_text().endswith("\n"):
            assert watch.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
        link = said.read_text().strip()

        assert "Right now" in once(link, "3 RUNNING")
        (folder / "finish").touch()
        assert "All 3 runs have ended" in once(link, "3 COMPLETED")

        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE_S) == 0
    finally:
        watch.kill()
        watch.wait()
