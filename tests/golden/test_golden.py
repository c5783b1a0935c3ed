"""What hpcml answers today, frozen: each question has a file of numbers and verdicts, and one of words, in `answers/`.

A difference in `NAME.json` is another answer, which whoever changed the code has to want and to say, and one in
`NAME.words.json` is another wording of it. ``HPCML_GOLDEN=write pytest tests/golden`` writes all anew, for `git diff`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hpcml
from hpcml.codec import encode
from hpcml.runs.state import read_fold
from tests.cli.command_line import Hpcml
from tests.commands.planning import planned_for
from tests.golden import inputs

ANSWERS = Path(__file__).parent / "answers"
ASKED = json.loads(Path(__file__).with_name("questions.json").read_text(encoding="utf-8"))
QUESTIONS, SCRIPTS, RUNS = (ASKED[kind] for kind in ("answers", "scripts", "runs"))
WORDS = frozenset(
    {
        "flags",
        "text",
        "remarks",
        "notes",
        "note",
        "sentences",
        "warnings",
        "limits",
        "pays_from",
        "reason",
        "why_no_mfu",
        "stderr",
    }
)
NOT_FROZEN = frozenset({"path", "hpcml_version", "published"})  # the last is a table of what others measured
IN_EACH_RUN = frozenset({"params", "spec_hash", "submitted_at", "t_start", "t_end", "git_commit"})  # `show` has them


@dataclass(frozen=True)
class Recorded:
    """A home with all recorded runs."""

    user: Hpcml
    journals: dict[str, inputs.RunDir]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    place = tmp_path_factory.mktemp("golden")
    home, project, runtime = place / "home", place / "project", place / "runtime"
    for folder in (project, runtime):
        folder.mkdir(mode=0o700)
    inputs.precisions(home)
    inputs.others(home)
    journals = inputs.journals(home)
    kept = {name: os.environ[name] for name in os.environ if not name.startswith(("HPCML_", "XDG_", "COLUMNS"))}
    environ = {**kept, "HOME": str(place), "HPCML_HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}
    return Recorded(Hpcml(environ=environ, cwd=project), journals)


def same(name: str, answer: Any, recorded: Recorded) -> None:  # noqa: ANN401 - JSON
    """Compare *answer* with the frozen one: first what it says, then in which words."""
    numbers, words = _numbers(_normal(answer, recorded)), dict(_words(_normal(answer, recorded)))
    files = {ANSWERS / f"{name}.json": numbers, ANSWERS / f"{name}.words.json": words}
    for file, value in files.items():
        text = _readable(value) + "\n"
        if os.environ.get("HPCML_GOLDEN") == "write":
            ANSWERS.mkdir(exist_ok=True)
            file.unlink(missing_ok=True)
            if value:
                file.write_text(text, encoding="utf-8")
        frozen = file.read_text(encoding="utf-8") if file.exists() else _readable({})
        assert text.splitlines() == frozen.splitlines(), f"{file.name} differs"


def _normal(value: Any, recorded: Recorded) -> Any:  # noqa: ANN401
    """Return *value* without what depends on the machine, the moment or the last bit; what is null is left out."""
    if isinstance(value, dict):
        known = {key: _normal(each, recorded) for key, each in sorted(value.items()) if key not in NOT_FROZEN}
        return {key: each for key, each in known.items() if each is not None}
    if isinstance(value, list):
        return [_normal(each, recorded) for each in value]
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, str):
        places = {recorded.user.environ["HPCML_HOME"]: "HOME", str(recorded.user.cwd): "PROJECT"}
        for place, word in {**places, sys.executable: "PYTHON", str(Path(hpcml.__file__).parents[1]): "HPCML"}.items():
            value = value.replace(place, word)
        value = re.sub(r"\b20260528-\d{6}-(?=[a-z]+\d\d\b)", "", value)  # three04 is what the inputs call it
        return re.sub(r"\b\d{8}-\d{6}-[a-z0-9]{5,8}\b", "ID", value)
    return value


def _is_words(key: object, value: Any) -> bool:  # noqa: ANN401
    return key in WORDS and (isinstance(value, str) or all(isinstance(each, str | None) for each in value))


def _numbers(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items() if not _is_words(key, each)}
    return [_numbers(each) for each in value] if isinstance(value, list) else value


def _words(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield each remark with the place where it stands, as cells.0.rows.1.flags."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if not _is_words(key, each):
            yield from _words(each, f"{place}{key}.")
        elif each:
            yield f"{place}{key}", each


def _readable(value: Any, indent: str = "") -> str:  # noqa: ANN401
    """Return *value* as JSON; what fits into a line stands in one."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, dict | list) or (len(text) <= 80 and "{" not in text[1:]):
        return text
    deeper = indent + " "
    if isinstance(value, list):
        lines = [_readable(each, deeper) for each in value]
    else:
        lines = [f"{json.dumps(key)}: {_readable(value[key], deeper)}" for key in sorted(value)]
    first, last = "[]" if isinstance(value, list) else "{}"
    return f"{first}\n" + ",\n".join(deeper + line for line in lines) + f"\n{indent}{last}"


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_its_answer(name: str, recorded: Recorded) -> None:
    words = QUESTIONS[name].split()
    done = recorded.user(*words, "--json")
    told = json.loads(done.stdout) if done.stdout else None
    if words[0] == "runs" and not {"--columns", "--best"} & set(words):
        told = [{key: each for key, each in run.items() if key not in IN_EACH_RUN} for run in told]
    same(name, {"answer": told, "exit": done.returncode, "stderr": done.stderr.splitlines()}, recorded)


@pytest.mark.parametrize("cluster", SCRIPTS)
def test_a_sweep_on_a_cluster_has_its_job_script(cluster: str, recorded: Recorded) -> None:
    words = (
        "run",
        "--dry-run=script",
        "-m",
        f"cluster={cluster}",
        "schedule.preflight=false",
        *SCRIPTS[cluster].split(),
    )
    done = recorded.user(*words)
    assert done.returncode == 0, done.stderr  # whose warnings are about the file system here
    same(f"script-{cluster}", {"script": done.stdout.splitlines()}, recorded)


@pytest.mark.parametrize("name", RUNS)
def test_a_command_line_composes_its_run(name: str, recorded: Recorded) -> None:
    planned = planned_for(recorded.user.cwd, *RUNS[name])
    told = [{"run": encode(each.run), "plan": encode(each.plan), "spec_hash": each.run.spec_hash} for each in planned]
    same(f"run-json-{name}", told, recorded)


def test_journals_have_their_states(recorded: Recorded) -> None:
    runs = {run.name: run for run in hpcml.open_store(home=recorded.user.home).runs(experiment="journals")}
    told = {}
    for name, run_dir in recorded.journals.items():
        fold, run = read_fold(run_dir), runs[name]
        assert (fold.state, fold.is_settled, fold.attempt) == (run.state, run.is_settled, run.attempt)
        known = ("cause", "reason", "exit_code", "wall_s", "job_id", "attempt", "is_settled")
        told[name] = {"state": run.state.name, **{key: getattr(run, key) for key in known}, "requeues": fold.requeues}
    same("journals", told, recorded)


def test_conditions_select_their_runs(recorded: Recorded) -> None:
    store, found = hpcml.open_store(home=recorded.user.home), {}
    for condition in ASKED["conditions"]:
        found[condition] = selected = dict[str, str]()
        for run in sorted(store.runs(condition), key=lambda run: run.uid):
            selected[run.experiment] = f"{selected.get(run.experiment, '')} {run.uid[-2:]}".strip()
    same("where", found, recorded)


def test_every_answer_belongs_to_a_question() -> None:
    asked = {*QUESTIONS, "journals", "where", *(f"script-{name}" for name in SCRIPTS)}
    asked |= {f"run-json-{name}" for name in RUNS}
    assert {path.name.split(".")[0] for path in ANSWERS.iterdir()} == asked
