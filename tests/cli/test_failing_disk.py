"""A file system that answers with an error in a place where nothing else than an answer is expected."""

from __future__ import annotations

import pytest

from tests.cli.command_line import Hpcml

LOOPS = "Too many levels of symbolic links (hpcml sync finishes what was begun, once that is put right)"


@pytest.mark.parametrize("words", ["status", "wait", "sync", "run --detach -- true"])
def test_what_the_file_system_refuses_is_one_line_with_the_place(hpcml: Hpcml, words: str) -> None:
    queues = hpcml.home / "submissions" / "queues"
    hpcml("runs")
    queues.parent.mkdir(mode=0o700)
    queues.symlink_to("queues")

    done = hpcml(*words.split())

    assert (done.returncode, done.stderr) == (1, f"hpcml: {queues}: {LOOPS}\n")

    queues.unlink()
    assert hpcml("run", "--", "true").returncode == 0
