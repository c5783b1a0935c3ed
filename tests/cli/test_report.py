"""``hpcml report``, typed as a user types it, over runs that were recorded and over runs that really ran."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpcml.model.precision import PrecisionName
from hpcml.model.run import Precision
from tests.cli.command_line import Hpcml, program, said_in_one_line
from tests.store.building import Journal, make_run_dir


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with two seeds of two precisions, one of whose runs failed."""
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    for at, name in enumerate((PrecisionName.fp32, PrecisionName.tf32)):
        for seed in range(3):
            uid = f"20260528-202640-{'abcdef'[3 * at + seed] * 8}"
            run_dir = make_run_dir(user.home / "runs", uid, seed=seed, precision=Precision(name=name))
            agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir)
            agent.event("attempt_started")
            rank0.event("probe", 0.5, precision_effective=name.name, numerics="native")
            for step in range(1, 21):
                rank0.metrics(step, step / 10, val_accuracy=0.04 * step + seed / 100, loss=1 / step, step_time_s=0.01)
            is_lost = at == 1 and seed == 2
            ended = {"state": "FAILED", "exit_code": 1} if is_lost else {"state": "COMPLETED", "exit_code": 0}
            agent.event("attempt_ended", 3.0, wall_s=3.0, **ended)
    return user


def figures(text: str) -> list[dict[str, object]]:
    return [json.loads(one) for one in re.findall(r"<script type=\"application/json\"[^>]*>(.*?)</script>", text)]


def charts(text: str) -> list[str]:
    return re.findall(r"<figcaption>([^<]+)</figcaption>", text)


def test_a_report_is_written_and_says_where(hpcml: Hpcml) -> None:
    done = hpcml("report")

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "a report of 6 runs is in report.html\n"
    text = (hpcml.cwd / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>\n<!-- hpcml report -->")
    assert "tf32 against fp32" in text
    assert "FAILED" in text
    curves = [one["layout"] for one in figures(text) if "updatemenus" in one["layout"]]  # type: ignore[operator]
    assert [one["xaxis"]["title"]["text"] for one in curves] == ["step"] * 3  # type: ignore[index]
    assert charts(text)[-3:] == ["val_accuracy", "loss", "step_time_s"]


def test_native_times_and_a_loss_scale_that_changed_have_curves(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    for uid, seed, numerics in (("aaaaaaaa", 0, "native"), ("bbbbbbbb", 1, "native"), ("cccccccc", 2, "emulated")):
        run_dir = make_run_dir(user.home / "runs", f"20260528-202640-{uid}", seed=seed)
        agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir)
        agent.event("attempt_started")
        rank0.event("precision", requested="amp_fp16", numerics=numerics, products={"matmul": "fp16"})
        for step in range(1, 21):
            rank0.metrics(step, step / 10, loss=1 / step, step_time_s=0.01, loss_scale=2.0 ** (step // 8 + seed))
        agent.event("attempt_ended", 3.0, wall_s=3.0, state="COMPLETED", exit_code=0)

    done = user("report", "-o", "r.html")

    assert done.returncode == 0, done.stderr
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert charts(text) == ["loss", "step_time_s", "loss_scale"]
    drawn = [sum("meta" in trace for trace in one["data"]) for one in figures(text)]  # type: ignore[attr-defined]
    assert drawn == [3, 2, 3]
    assert "Left out: runs whose numerics are not native (1)" in text


def test_the_command_that_makes_the_report_again_makes_it_again(hpcml: Hpcml) -> None:
    first = hpcml("report", "--md", "--title", "it's mine", "--where", "precision=tf32 or precision=fp32").stdout
    (line,) = [line.strip() for line in first.splitlines() if line.startswith("    ") and "report --md" in line]

    assert line.endswith("report --md --title 'it'\"'\"'s mine' --where 'precision=tf32 or precision=fp32'")


def test_a_report_replaces_an_earlier_one_and_nothing_else(hpcml: Hpcml) -> None:
    (hpcml.cwd / "mine.html").write_text("<!doctype html>\n<p>mine", encoding="utf-8")

    twice = [hpcml("report", "-o", "ours.html").returncode for _ in range(2)]
    done = hpcml("report", "-o", "mine.html")

    assert twice == [0, 0]
    assert done.returncode == 2
    assert "mine.html was not written by this export: give another file with -o" in said_in_one_line(done)
    assert (hpcml.cwd / "mine.html").read_text(encoding="utf-8") == "<!doctype html>\n<p>mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--where", "seed=99"], "no run matches: nothing to report"),
        (["--by", "presicion"], "--by presicion is no setting of these runs; did you mean precision"),
        (["--curve", "los"], "--curve los: no run recorded it; they have loss, step_time_s, val_accuracy"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(hpcml: Hpcml, words: list[str], said: str) -> None:
    done = hpcml("report", *words)

    assert done.returncode == 2
    assert said in done.stderr
    assert not (hpcml.cwd / "report.html").exists()


def test_runs_that_cannot_be_compared_are_reported_with_the_reason(hpcml: Hpcml) -> None:
    done = hpcml("report", "--md", "--where", "precision=fp32")

    assert done.returncode == 0
    assert "These runs were not compared:" in done.stdout
    assert "all 3 runs have precision=fp32: nothing to compare" in done.stdout


def test_the_end_of_the_files_name_says_its_form(hpcml: Hpcml) -> None:
    for name, begins in (("r.md", "# "), ("r.tex", "% hpcml report"), ("r.html", "<!doctype html>")):
        assert hpcml("report", "-o", name).returncode == 0
        assert begins in (hpcml.cwd / name).read_text()[:200]
        assert ("<!doctype" in (hpcml.cwd / name).read_text()) == (name == "r.html")


def test_runs_that_really_ran_are_reported_with_their_command(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    code = (
        "import sys, hpcml_client as c\n"
        "with c.connect() as run:\n"
        "    for step in range(1, 31): run.metrics({'val_accuracy': step / 40 + int(sys.argv[1]) / 99}, step)\n"
    )
    ran = user("run", "-m", program(code, "${seed}"), "training.batch_size=32,64", "seed=0,1", "experiment=real")
    assert ran.returncode == 0, ran.stderr

    done = user("report", "--by", "training.batch_size", "-o", "out/r.html")

    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "r.html").read_text(encoding="utf-8")
    assert "64 against 32" in text
    assert "training.batch_size=32,64 seed=0,1 experiment=real" in text


@pytest.mark.parametrize(
    "words", [["--store", "postgresql://me:secret@db/runs"], ["--store=postgresql://me:secret@db/r"]]
)
def test_a_password_does_not_get_into_the_command_that_makes_the_report_again(words: list[str]) -> None:
    from hpcml.cli.compare import _command_line  # noqa: PLC0415

    told = _command_line(["/opt/bin/hpcml", *words, "report", "--where", "seed=1"])

    assert "secret" not in " ".join(told)
    assert [told[0], *told[-3:]] == ["hpcml", "report", "--where", "seed=1"]
