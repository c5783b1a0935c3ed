"""A run that has no more room for what it reports completes, and is marked: its last values may not be its last."""

from __future__ import annotations

import json

import pytest

from tests.cli.command_line import Hpcml, program

# as on a full disk: from now on no file may grow beyond its first bytes
_NO_MORE_ROOM = """
import resource
from hpcml_client import connect

with connect() as run:
    for step in range(60):
        if step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (900, resource.RLIM_INFINITY))
        run.metric("val_accuracy", step / 60, step=step)
    {more}
"""
_ROOM_AGAIN = "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))"
_ROOM_FOR_ONE = f"run.note('told')\n    {_ROOM_AGAIN}\n    run.metric('val_accuracy', 1.0, step=99)"


@pytest.mark.parametrize(
    ("more", "why", "last"),
    [
        ("", "what rank 0 reported last may be missing: the journal has no end, as on a full disk, ", None),
        (_ROOM_AGAIN, "records were lost", None),
        (_ROOM_FOR_ONE, "records were lost", 1.0),
    ],
)
def test_a_run_without_room_for_its_last_values_is_marked(
    hpcml: Hpcml, more: str, why: str, last: float | None
) -> None:
    done = hpcml("run", "-m", program(_NO_MORE_ROOM.format(more=more)), "precision=fp32,bf16")

    run, _ = hpcml.runs()
    table, shown = hpcml("runs"), hpcml("show", run["uid"])
    compared = json.loads(hpcml("compare", "--by", "precision", "--json").stdout)
    assert (done.returncode, run["state"]) == (0, "COMPLETED")
    assert why in run["incomplete"]
    assert "incomplete" in table.stdout
    assert why in shown.stdout
    assert any("of which records may be missing" in flag for flag in flags_in(compared))
    assert [each["uid"] for each in json.loads(hpcml("runs", "--where", "incomplete!=none", "--json").stdout)] == [
        each["uid"] for each in hpcml.runs()
    ]
    assert last is None or run["metrics"]["val_accuracy"]["last"] == last
    assert ("told" in shown.stdout) == ("told" in more)


def flags_in(value: object) -> list[str]:
    """Return all texts below any "flags"."""
    parts = (
        value.items()
        if isinstance(value, dict)
        else ((None, each) for each in value)
        if isinstance(value, list)
        else ()
    )
    return [
        text for key, part in parts for text in ([flag["text"] for flag in part] if key == "flags" else flags_in(part))
    ]


def test_a_run_with_room_is_not_marked(hpcml: Hpcml) -> None:
    hpcml("run", program("from hpcml_client import connect; connect().metric('val_accuracy', 0.5)"))

    (run,) = hpcml.runs()
    assert (run["state"], run["incomplete"]) == ("COMPLETED", None)
    assert "incomplete" not in hpcml("runs").stdout


@pytest.mark.parametrize(("last_words", "why"), [("", "leaves by os._exit without close()"), ("run.close()", None)])
def test_a_program_that_leaves_without_an_end_is_marked_unless_it_closes_its_client(
    hpcml: Hpcml, last_words: str, why: str | None
) -> None:
    leaves = (
        f"import os\nrun = __import__('hpcml_client').connect()\nrun.metric('loss', 1.0)\n{last_words}\nos._exit(0)"
    )

    hpcml("run", program(leaves))

    (run,) = hpcml.runs()
    assert (run["state"], run["metrics"]["loss"]["last"]) == ("COMPLETED", 1.0)
    assert (run["incomplete"] is None) if why is None else (why in run["incomplete"])
