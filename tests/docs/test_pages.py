from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pages import DOCS, ROOT, all_pages, links_of

from hpcml.commands.submit.launch import UnrecordedError
from hpcml.errors import HpcmlError
from hpcml.model.precision import CAPABILITIES
from hpcml.model.state import State
from hpcml.schedulers.commands import NoAnswerError


def test_the_docs_build_without_a_single_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-nW", "--keep-going", "-q", "-b", "html"),
            *("-d", tmp_path / "trees", DOCS, tmp_path / "html"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "index.html").is_file()


def test_links_that_stay_in_the_repository_lead_somewhere() -> None:
    for page, target in ((each, target) for each in all_pages() for target in links_of(each)):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.is_file(), f"{page}: {target}"
        assert not anchor or anchor in anchors(linked), f"{page}: {target}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


FOR_DEVELOPERS = [ROOT / "CONTRIBUTING.md", DOCS / "architecture.md", *sorted((DOCS / "decisions").glob("*.md"))]
_MADE_UP = ("NAME", "mine", "*")  # of what the reader is to write


def test_files_that_developers_are_sent_to_are_there() -> None:
    for page in FOR_DEVELOPERS:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        named = re.findall(r"`((?:[a-z_]+/)+[\w.*]*|\w+\.(?:py|toml|css|sql))`", text)
        gone = {name for name in named if not any(each in name for each in _MADE_UP) and not is_there(name)}

        assert gone == set(), page


def is_there(name: str) -> bool:
    """Tell whether *name* is a file or a folder, from the top or from any room; a module may lack its ending."""
    folders = (ROOT / name for name in ("hpcml", "hpcml_client", "hpcml_train", "recipes", "tests", "docs"))
    either = (name.rstrip("/"), f"{name}.py")
    return any((ROOT / each).exists() for each in either) or any(
        next(folder.rglob(each), None) for folder in folders for each in either
    )


def test_what_is_made_from_the_program_is_up_to_date() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        from generate import pages  # noqa: PLC0415 - docs/ is no package
    finally:
        sys.path.remove(str(DOCS))

    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python docs/generate.py"


def test_the_page_on_configuration_names_every_option_of_the_groups() -> None:
    said = (DOCS / "configuration.md").read_text(encoding="utf-8").partition("## Sweeps")[0]

    for group in ("model", "data", "precision", "strategy", "layout", "container", "profile"):
        (row,) = (line for line in said.splitlines() if line.startswith(f"| `{group}` |"))
        options = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        assert options
        assert {name for name in options if f"`{name}`" not in row} == set(), group


def test_the_capability_table_says_what_the_data_says() -> None:
    text = (DOCS / "precision.md").read_text(encoding="utf-8")
    part = text.partition("capabilities -->")[2].partition("<!-- end -->")[0]
    rows = {row[0].strip("`"): row for row in (cells(line) for line in part.strip().splitlines()[2:])}

    assert list(rows) == [name.name for name in CAPABILITIES]
    for name, capability in CAPABILITIES.items():
        _, gpu, cpu, emulation, _ = rows[name.name]
        trained, only = ("native", "") if capability.trains else ("native, in inference only", ", in inference only")
        assert (cpu == trained) is capability.on_cpu
        assert gpu.endswith(only)
        assert (gpu == "refused") is (capability.min_compute_capability is None)
        assert (emulation == "-") is (capability.emulation is None)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_error_and_every_state_is_in_the_reference() -> None:
    text = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")

    for error in {HpcmlError, *HpcmlError.__subclasses__(), NoAnswerError, UnrecordedError}:  # whatever was imported
        assert re.search(rf"^\| {error.exit_code} \|.*\| `{error.__name__}` \|$", text, re.MULTILINE), error
    for state in State:
        assert f"`{state.value}`" in text
