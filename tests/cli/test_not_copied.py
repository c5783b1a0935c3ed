"""The file of the user's that a run did not find, since its working directory is a copy without it."""

from tests.cli.command_line import Hpcml


def test_a_file_that_is_no_part_of_the_copy_is_told_where_the_run_did_not_find_it(hpcml: Hpcml) -> None:
    for place in ("mine/checkpoints/base.pt", "mine/train.py", "other/words.txt"):
        (hpcml.cwd / place).parent.mkdir(parents=True, exist_ok=True)
        (hpcml.cwd / place).write_text("open('checkpoints/base.pt')\n")
    for does, told in (
        ("python train.py", "mine/checkpoints/base.pt"),
        ("cat ../other/words.txt", "other/words.txt"),
        ("cat $PWD/../other/words.txt", "other/words.txt"),
        ("cat nothing.txt; exit 1", None),  # the user has none either
        ("rm train.py; cat train.py; exit 1", None),  # it was there, and the program itself removed it
        ("cat /nothing/words.txt ../../../../etc/nothing; exit 1", None),
    ):
        said = " ".join(hpcml("run", "workload.cwd=mine", "--", "bash", "-c", does).stderr.split())

        if told is None:
            assert "did not find" not in said, does
        else:
            assert f"did not find {hpcml.cwd}/{told}, which is no part of the copy that a run starts in: give" in said
