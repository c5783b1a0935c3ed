"""The bundle from which commands start: each module of it is the one that Python would find, or is not taken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.bundled_commands import MAGIC
from tests.agent.installation import Installation

START = "from hpcml.cli.start import main; main()"
USE = "import sys; from hpcml.bundled_commands import use_commands; use_commands()\n"
LOOK = """
import sys, importlib, inspect, importlib.resources, json
names = ["hpcml.cli.main", "hpcml.runs.plan", "hpcml.model.hardware", "click", "click.core", "sqlalchemy",
         "logging", "omegaconf", "psutil._psutil_linux", "rich.table", "numpy.linalg"]
found = {}
for name in names:
    module = importlib.import_module(name)
    spec = module.__spec__
    has_source = spec.cached is not None
    found[name] = [
        module.__file__, spec.name, spec.origin, spec.cached, spec.submodule_search_locations, spec.parent,
        spec.has_location, getattr(module, "__path__", None), module.__package__,
        module.__cached__ if has_source else None,
        inspect.getsource(module) if has_source else None, spec.loader.is_package(name), spec.loader.get_filename(),
    ]
from hpcml.runs.plan import Image
found["a class"] = [repr(Image(path="x")), inspect.getsource(Image), Image.__init__.__code__.co_filename]
found["a file"] = importlib.resources.files("hpcml.model").joinpath("gpus.toml").read_text()
code = sys.modules["hpcml.cli.main"].main.__code__
found["lines"] = [code.co_filename, list(map(list, code.co_lines())), list(map(list, code.co_positions()))]
print(json.dumps(found))
print(json.dumps({name: type(sys.modules[name].__spec__.loader).__name__ for name in names}))
"""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation with its bundles, for all tests here: each changes other modules."""
    installation = Installation(tmp_path_factory.mktemp("made") / "checkout")
    assert installation.refresh() == "None"
    return installation


def loaded(installation: Installation, module: str, *, before: str = "", **environ: str) -> list[str]:
    """Return of which kind the loader of *module* is, and the word that it says."""
    look = f"{before}\nimport importlib; module = importlib.import_module({module!r})\n"
    look += "print(type(module.__spec__.loader).__name__, getattr(module, 'WORD', None))"
    return installation.python("-c", USE + look, **environ).split()


def add_word(module: Path, *, by_exchange: bool = False) -> None:
    text = module.read_text() + "\nWORD = 'new'\n"
    if by_exchange:
        module.rename(module.with_suffix(".old"))
    module.write_text(text)


def test_what_a_command_loads_is_the_same_from_a_bundle(installation: Installation) -> None:
    before, loaders_before = installation.python("-c", LOOK).splitlines()
    after, loaders = installation.python("-c", USE + LOOK).splitlines()

    assert json.loads(before) == json.loads(after)
    assert set(json.loads(loaders_before).values()) == {"SourceFileLoader", "ExtensionFileLoader"}
    assert set(json.loads(loaders).values()) == {"_Loader", "ExtensionFileLoader"}


@pytest.mark.parametrize(
    "words", [["--version"], ["runs"], ["runs", "--json"], ["run", "--dry-run"], ["rnus"], ["gpus"]]
)
def test_a_command_says_the_same_from_a_bundle(words: list[str], installation: Installation, tmp_path: Path) -> None:
    said = []
    for code in ("from hpcml.cli.main import main; main()", START):
        environ = {**installation.environ, "HPCML_HOME": str(tmp_path)}
        argv = [sys.executable, "-P", "-c", code, *words]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)
        said.append((done.returncode, done.stdout, done.stderr))

    assert said[0] == said[1]


def test_what_finds_the_bundle_loads_nothing_else(installation: Installation) -> None:
    begin = "import hpcml.cli.start, hpcml.bundled_commands"
    look = f"import sys; before = set(sys.modules); {begin}; print(*sorted(set(sys.modules) - before))"

    loaded = installation.python("-c", look).split()

    assert loaded == ["gc", "hpcml", "hpcml.bundled", "hpcml.bundled_commands", "hpcml.cli", "hpcml.cli.start"]


def test_python_m_hpcml_is_the_command_line(installation: Installation) -> None:
    assert installation.python("-m", "hpcml", "--version") == installation.python("-c", START, "--version")


def test_a_module_that_somebody_has_edited_is_taken_from_its_file(installation: Installation) -> None:
    add_word(installation.folder / "hpcml" / "commands" / "best.py")

    assert loaded(installation, "hpcml.commands.best") == ["SourceFileLoader", "new"]
    assert loaded(installation, "hpcml.commands.tag") == ["_Loader", "None"]


def test_a_module_that_an_installer_has_exchanged_is_taken_from_its_file(installation: Installation) -> None:
    add_word(installation.folder / "hpcml" / "interop" / "output.py", by_exchange=True)

    assert loaded(installation, "hpcml.interop.output") == ["SourceFileLoader", "new"]


def test_a_package_that_has_come_where_a_module_is_goes_before_it_as_ever(installation: Installation) -> None:
    package = installation.folder / "hpcml" / "images" / "inventory"
    package.mkdir()
    (package / "__init__.py").write_text("WORD = 'package'")

    assert loaded(installation, "hpcml.images.inventory") == ["SourceFileLoader", "package"]


def test_a_module_that_has_gone_is_not_there(installation: Installation) -> None:
    (installation.folder / "hpcml" / "report" / "best.py").unlink()

    look = "import importlib.util; print(importlib.util.find_spec('hpcml.report.best'))"
    assert installation.python("-c", USE + look).strip() == "None"


def test_what_goes_before_on_the_path_is_found_as_ever(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("WORD = 'own'")
    (tmp_path / "logging.py").write_text("WORD = 'own'")
    path = f"{tmp_path}:{installation.folder}"

    assert loaded(installation, "yaml") == ["_Loader", "None"]
    assert loaded(installation, "yaml", PYTHONPATH=path) == ["SourceFileLoader", "own"]
    assert loaded(installation, "logging", PYTHONPATH=path) == ["SourceFileLoader", "own"]
    assert loaded(installation, "yaml", before=f"sys.path.insert(0, {str(tmp_path)!r})") == ["SourceFileLoader", "own"]


def test_another_copy_of_hpcml_is_not_mixed_with_this_one(installation: Installation, tmp_path: Path) -> None:
    shutil.copytree(installation.folder, tmp_path / "copy")  # with the bundle, which says where its files lie

    found = loaded(installation, "hpcml.commands.tag", PYTHONPATH=str(tmp_path / "copy"))

    assert found == ["SourceFileLoader", "None"]


def test_a_finder_that_somebody_has_set_goes_first(installation: Installation) -> None:
    finder = """
import importlib.machinery, importlib.util
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "yaml":
            return importlib.util.spec_from_loader(name, Finder)
    @staticmethod
    def create_module(spec): return None
    @staticmethod
    def exec_module(module): module.WORD = "found"
sys.meta_path.insert(0, Finder)
"""

    assert loaded(installation, "yaml", before=finder) == ["type", "found"]


def test_who_closes_files_that_are_not_his_does_no_harm(installation: Installation) -> None:
    closed = "import os; os.closerange(3, 64)"
    reused = closed + "\nfiles = [open('/dev/zero') for _ in range(8)]"
    read = "\nimport hpcml.runs.plan, plotly.graph_objects; WORD = hpcml.runs.plan.Image(path='x').path"

    for before in (closed, reused):
        said = installation.python("-c", USE + before + read + "; print(WORD)")
        assert said.strip() == "x"


def test_a_traceback_shows_the_line(installation: Installation) -> None:
    fails = """
import hpcml.codec, traceback
try: hpcml.codec.decode(int, 'x')
except Exception: traceback.print_exc(file=sys.stdout)
"""

    with_bundle, without = (installation.python("-c", use + fails) for use in (USE, "import sys\n"))

    assert "hpcml/codec.py" in with_bundle
    assert with_bundle == without


@pytest.mark.parametrize("damage", [b"", b"something else", MAGIC, MAGIC + bytes(16), None, "python"])
def test_half_a_bundle_or_one_of_another_python_is_none(damage: bytes | str | None, installation: Installation) -> None:
    (bundle,) = installation.commands
    content = bundle.read_bytes()
    version = sys.version.encode()
    if damage == "python":
        assert content.count(version) == 1
        broken = content.replace(version, version[:-1] + b"?")
    else:
        broken = content[:-1] if damage is None else damage.encode() if isinstance(damage, str) else damage
    bundle.write_bytes(broken)
    try:
        assert loaded(installation, "hpcml.commands.tag") == ["SourceFileLoader", "None"]
    finally:
        bundle.write_bytes(content)


def test_it_is_made_anew_where_much_has_changed_and_only_there(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    (installation.folder / "hpcml" / "report" / "top.py").write_text("raise OSError('half installed')")
    ask = USE + "import {}\nfrom hpcml.agent.bundle import refresh; print(refresh())"
    assert installation.python("-c", ask.format("hpcml.cli")) == "None\n"
    (bundle,) = installation.commands
    first = bundle.stat().st_mtime_ns
    assert loaded(installation, "hpcml.commands.tag") == ["_Loader", "None"]  # what can be loaded is in it

    add_word(installation.folder / "hpcml" / "commands" / "rm.py")
    installation.python("-c", ask.format("hpcml.commands.rm"))
    installation.edit(by_exchange=False)  # of which the agents' bundle is made anew
    installation.refresh()
    assert installation.look()["from"] == "_Loader"
    assert bundle.stat().st_mtime_ns == first

    names = sorted(path.stem for path in (installation.folder / "hpcml" / "model").glob("[a-z]*.py"))
    (installation.folder / "hpcml" / "model" / "new.py").write_text("WORD = 'new'")  # an installer was in this folder
    installation.python("-c", ask.format(", ".join(f"hpcml.model.{name}" for name in names)))
    assert bundle.stat().st_mtime_ns != first
    assert loaded(installation, "hpcml.model.new") == ["_Loader", "new"]
    assert loaded(installation, "hpcml.commands.rm") == ["_Loader", "new"]


def test_two_that_make_it_at_once_leave_a_whole_one(installation: Installation) -> None:
    argv = [sys.executable, "-P", "-m", "hpcml.agent.bundle"]
    makers = [subprocess.Popen(argv, env=installation.environ) for _ in range(2)]

    assert [maker.wait(120) for maker in makers] == [0, 0]
    assert len(installation.commands) == 1
    assert loaded(installation, "hpcml.commands.tag") == ["_Loader", "None"]
