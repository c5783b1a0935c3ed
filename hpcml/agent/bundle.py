"""Makes the bundle: one file with all modules that an agent loads on a node (`hpcml.bundled` says what for).

It holds compiled modules of hpcml, of Python's library and of what the sampler needs, as Python would load them, and
says where the extension modules lie. It lies among Python's own compiled modules, is trusted as they are, and is made
under their conditions: where their folder can be written to and Python may write them. `refresh` does it before runs
are submitted; whoever installs hpcml for others calls ``python -m hpcml.agent.bundle`` once.

What a bundle was made of is watched as Python watches what it has compiled, by time and size. A submission looks at
every file. An agent looks at each file of a checkout, which people edit; of an installed package at its folder, which
an installer changes by exchanging files. So what somebody edits there by hand is in agents from the next submission on.

What commands load is made into a file of its own (`hpcml.bundled_commands`), of which a command looks at each module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import marshal
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hpcml
from hpcml.bundled import MAGIC, Bundle, place_of_bundle, status_of
from hpcml.bundled_commands import LENGTHS, MARK, commands_are_fresh, place_of_commands
from hpcml.bundled_commands import MAGIC as COMMANDS_MAGIC

_EARLY = (  # by an agent until the program starts, or its sampler does: of the bundle this is read module by module
    "hpcml.agent.turns",
    "hpcml.agent.attempt",
    "hpcml.agent.telemetry.host",
    "hpcml.agent.staging",
    "hpcml.agent.metrics.printed",
    "encodings.ascii",  # in which /proc is read
)
_LATE = (  # by an agent, its sampler, a rank of MPI and a queue; what few of them need stays outside
    "hpcml.agent.ending",
    "hpcml.agent.lanes",
    "hpcml.agent.metrics.event_files",
    "hpcml.agent.metrics.json_files",
    "hpcml.agent.metrics.tables",
    "hpcml.agent.metrics.wandb_log",
    "hpcml.agent.telemetry.sampler",
    "hpcml.agent.telemetry.summary",
    "hpcml.agent.mpi.job",
    "hpcml.agent.mpi.rank",
    "hpcml.schedulers.local.queue",  # which starts agents on this machine
)
_LOADED_BY_NAME = ("antlr4.LL1Analyzer", "omegaconf._impl", "rich._emoji_codes", "sqlalchemy.dialects.sqlite")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PATIENCE_S = 60.0
_AGENTS_ALONE = "--agents"
_SHOWS_LOADED = (  # a module that waits for its first use is of another class
    "import sys; from hpcml.bundled import use_bundle; use_bundle(); before = set(sys.modules); import {}; "
    "print(*(name for name, module in sys.modules.items() if name not in before and type(module) is type(sys)))"
)
_File = tuple[str, str | None, SourceFileLoader | None]  # file, folder of a package, None: an extension module


def refresh() -> str | None:
    """Make the bundle anew in a Python of its own, where it is absent or older than what it is made of.

    The commands' is made with it where that is absent, or was of little use to this command: it takes a second more.
    Nothing happens where compiled modules cannot be written, or must not be. Returns why they could not be made, in
    one line: agents start without, too.
    """
    are_fresh = commands_are_fresh()
    if sys.dont_write_bytecode or (are_fresh and _is_fresh()) or not _is_writable():
        return None
    words = [sys.executable, *["-O"] * sys.flags.optimize, "-P", "-m", "hpcml.agent.bundle"]
    words += [_AGENTS_ALONE] if are_fresh else []
    try:
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_S)
    except subprocess.CalledProcessError as error:
        said: bytes = error.stderr
        return (said.decode(errors="replace").strip().splitlines() or [str(error)])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


def make(*, for_commands: bool) -> None:
    """Load what an agent loads, and with *for_commands* what commands load, and write both bundles; raises `OSError`.

    To be called in a Python that has loaded nothing of hpcml but this module.
    """
    noted = _Noted()
    noted.load(lambda: [importlib.import_module(name) for name in (*_EARLY, *_LATE)])
    from hpcml.runs.atomic import replacing  # noqa: PLC0415 - not before what dataclasses write is noted

    files = dict(_files(sys.modules.items()))
    sources = _statuses(file for file, _, _ in files.values() if not _is_pythons(file))
    codes = {
        name: marshal.dumps((_code(loader, name), noted.written.get(name, {})))
        for name, (_, _, loader) in files.items()
        if loader is not None
    }
    head: dict[str, Any] = {
        "python": sys.version,
        "watched": _statuses(_watched(files.values())),
        "patterns": {of: marshal.dumps(compiled) for of, compiled in noted.patterns.items()},
        "absent": {name for name in sys.stdlib_module_names if importlib.util.find_spec(name) is None},
    }
    place = Path(place_of_bundle())
    place.parent.mkdir(parents=True, exist_ok=True)
    if _statuses(path for path, _ in sources) == sources:  # else somebody is at work on them: the next one makes it
        for find_early in (tuple, _loaded_early):  # which are early, the bundle itself shows
            with replacing(place, durable=True) as draft:
                draft.write_bytes(_laid_out(head, files, codes, marshal.dumps(sources), find_early()))
    if not for_commands:
        return
    noted.load(_load_for_commands)
    with replacing(Path(place_of_commands()), durable=True) as draft:
        draft.write_bytes(_for_commands(noted))


def _laid_out(
    head: dict[str, Any], files: Mapping[str, _File], codes: Mapping[str, bytes], sources: bytes, early: Sequence[str]
) -> bytes:
    """Return the content of the bundle, in which the codes of the modules *early* come first."""
    first = [name for name in early if name in codes]
    places, end = {}, 0
    for name in (*first, *(name for name in codes if name not in first)):
        places[name] = (end, end + len(codes[name]))
        end += len(codes[name])
    modules = {name: (file, folder, places.get(name)) for name, (file, folder, _) in files.items()}
    raw = marshal.dumps({**head, "modules": modules, "sources": (end, end + len(sources))})
    early_bytes = sum(len(codes[name]) for name in first)
    lengths = (length.to_bytes(8, "little") for length in (len(raw), early_bytes, end + len(sources)))
    return b"".join([MAGIC, *lengths, raw, *(codes[name] for name in places), sources])


def _loaded_early() -> Sequence[str]:
    """Return the modules that are loaded, by the bundle that there is, where an agent loads what is early."""
    words = [sys.executable, "-P", "-c", _SHOWS_LOADED.format(", ".join(_EARLY))]
    try:
        done = subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.SubprocessError):
        return ()  # then each agent reads all of the bundle
    return done.stdout.decode().split()


def _load_for_commands() -> None:
    """Load what commands may need; what cannot be loaded, such as a package that is half installed, is not in it."""
    names = [found.name for found in pkgutil.walk_packages(hpcml.__path__, "hpcml.", onerror=lambda _: None)]
    for name in [*names, *_LOADED_BY_NAME]:
        if not name.startswith("hpcml.store.migrations"):  # which Alembic executes
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _for_commands(noted: _Noted) -> bytes:
    """Return the content of the commands' bundle, of all modules that Python finds in one folder."""
    mark = os.urandom(MARK)
    parts: list[bytes] = []
    end = 0

    def placed(what: Any) -> tuple[int, int]:  # noqa: ANN401 - as marshal
        nonlocal end
        parts.append(mark + marshal.dumps(what))
        begin, end = end, end + len(parts[-1])
        return begin, end

    modules: dict[str, Any] = {}
    folders: dict[str, Any] = {}
    tops: dict[str, Any] = {}
    for name, (file, _, loader) in _files(sys.modules.items()):
        if loader is not None and loader.name != name:
            continue  # another name of a module
        package, _, last = name.rpartition(".")
        where = sys.path if not package else list(getattr(sys.modules.get(package), "__path__", []))
        folder = next((each for each in where if file.startswith(f"{each}/{last}")), None)
        if folder is None or (package and len(where) != 1):
            continue
        was = status_of(file)
        (folders if package else tops)[package or name] = folder, status_of(folder)
        place = None if loader is None else placed((_code(loader, name), noted.written.get(name, {})))
        modules[name] = file.removeprefix(f"{folder}/{last}"), was, place
    head = {
        "python": sys.version,
        "mark": mark,
        "modules": modules,
        "folders": folders,
        "tops": tops,
        "pythons": {each for each in sys.path if _is_pythons(f"{each}/os.py") or each.endswith(".zip")},
        "patterns": {of: placed(compiled) for of, compiled in noted.patterns.items()},
    }
    raw = marshal.dumps(head)
    lengths = (length.to_bytes(LENGTHS, "little") for length in (len(raw), end))
    return b"".join([COMMANDS_MAGIC, *lengths, raw, *parts])


class _Noted:
    """What was compiled while modules were loaded."""

    def __init__(self) -> None:
        self._compiler = vars(importlib.import_module("re._compiler"))
        self._compile, self._sre = self._compiler["compile"], self._compiler["_sre"]
        self.written: dict[str, dict[str, CodeType]] = {}  # by module
        self.patterns: dict[tuple[str | bytes, int], tuple[Any, ...]] = {}

    def load(self, load: Callable[[], object]) -> None:
        """Call *load* and note what is compiled; patterns that were compiled before are compiled once more."""
        before = [(pattern, flags) for _, pattern, flags in getattr(re, "_cache", ())]
        vars(dataclasses)["exec"] = self.execute  # its own global name, before Python's
        self._compiler["compile"] = self.compile
        re.purge()
        for pattern, flags in before:
            re.compile(pattern, flags)
        load()
        self._compiler["compile"] = self._compile
        del vars(dataclasses)["exec"]

    def execute(self, text: str, *names: dict[str, Any]) -> None:
        """Do what ``exec`` does, for `dataclasses`."""
        code = compile(text, "<string>", "exec", dont_inherit=True)
        self.written.setdefault(names[0]["__name__"], {})[text] = code  # the names of the module with the class
        exec(code, *names)  # noqa: S102 - that library's own text

    def compile(self, pattern: str | bytes, flags: int = 0) -> Any:  # noqa: ANN401 - a re.Pattern
        """Do what ``re._compiler.compile`` does."""
        asked = (pattern, int(flags))

        class Noting:
            def __getattr__(inner, name: str) -> Any:  # noqa: ANN401, N805 - re's own module in C
                return getattr(self._sre, name)

            def compile(inner, pattern: str | bytes, *compiled: Any) -> Any:  # noqa: ANN401, N805 - as above
                self.patterns[asked] = tuple(_plain(what) for what in compiled)
                return self._sre.compile(pattern, *compiled)

        self._compiler["_sre"] = Noting()
        try:
            return self._compile(pattern, flags)
        finally:
            self._compiler["_sre"] = self._sre


def _plain(value: Any) -> Any:  # noqa: ANN401 - as marshal
    """Return *value* without the named numbers of `re`, which marshal does not know."""
    if isinstance(value, list):
        return [int(word) for word in value]
    return int(value) if isinstance(value, int) else value


def _files(modules: Iterable[tuple[str, ModuleType]]) -> Iterator[tuple[str, _File]]:
    """Yield the modules that were loaded from files, by name, but for the one that runs."""
    for name, module in list(modules):
        spec = getattr(module, "__spec__", None)  # typing.io has none
        if spec is None or spec.origin is None or name == "__main__":
            continue
        folders = spec.submodule_search_locations
        if type(spec.loader) is SourceFileLoader:
            yield name, (spec.origin, None if folders is None else next(iter(folders)), spec.loader)
        elif type(spec.loader) is ExtensionFileLoader:
            yield name, (spec.origin, None, None)


def _code(loader: SourceFileLoader, name: str) -> CodeType:
    code = loader.get_code(name)
    assert isinstance(code, CodeType)  # what was loaded has code
    return code


def _watched(files: Iterable[_File]) -> Iterator[str]:
    """Yield what an agent looks at: files of a checkout, of an installed package its folders; nothing of Python's."""
    for file, folder, _ in files:
        if _is_pythons(file):
            continue
        path = Path(file)
        is_in_package = folder is not None or (path.parent / "__init__.py").exists()
        yield str(path.parent) if is_in_package and _is_installed(path) else file


def _is_installed(path: Path) -> bool:
    return not _INSTALLED.isdisjoint(path.parts)


def _is_pythons(file: str) -> bool:
    """Tell whether *file* belongs to Python's own library, which changes with its version."""
    path = Path(file)
    return path.is_relative_to(Path(os.__file__).parent) and not _is_installed(path)


def _statuses(paths: Iterable[str]) -> list[tuple[str, tuple[int, int] | None]]:
    return [(path, status_of(path)) for path in sorted(set(paths))]


def _is_fresh() -> bool:
    try:
        bundle = Bundle(place_of_bundle())
        sources = bundle.at(bundle.head["sources"])  # at the end: the file is closed by now
        return bundle.is_current() and all(status_of(path) == was for path, was in sources)
    except (OSError, ValueError, EOFError, TypeError, KeyError):
        return False


def _is_writable() -> bool:
    folders = Path(place_of_bundle()).parents
    return os.access(next(folder for folder in folders if folder.exists()), os.W_OK)


if __name__ == "__main__":
    make(for_commands=_AGENTS_ALONE not in sys.argv[1:])
