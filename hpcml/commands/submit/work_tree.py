"""What a program starts with, as it is now: files that count as code, and what becomes of everything beside them.

Code is what git tracks or would add, submodules included; in a folder that git keeps nothing of, what lies there. The
entries that git ignores, and those of a folder without git, are decided one by one (`_Sorter`):

- an environment (venv, conda, node_modules) and a folder of data (data*, dataset*, input*) is shared: a link; a package
  of Python that is called so is none;
- a folder of outputs (out*, results*, runs, logs, checkpoint*, ...) begins empty, a file of that kind is left out;
- everything else is copied for each run, up to 64 MiB and 2,000 files together;
- what is larger is shared, but for files of weights and databases outside of folders of data, which are copied for each
  run whatever their size.

What hpcml keeps in a home, this one's or another that lies in the tree, is left out, whether or not git keeps it.

So nothing that a program is likely to overwrite is shared, neither with other runs nor with the user's own folder.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath

from hpcml.commands.submit.code_store import File, Link
from hpcml.errors import ConfigError
from hpcml.paths import Places, home_of_user
from hpcml.runs.layout import is_home
from hpcml.runs.working_directory import is_environment

_TIMEOUT_S = 60
MOST_BYTES = 256 << 20
_MOST_FILES = 20_000
_NAMED = 3  # of the biggest files, in an error
_COMPILED = ("__pycache__", ".pyc")  # of the files as they will be edited: Python might take them for those of the copy

# Of what git does not keep.
_MOST_OTHER_BYTES, _MOST_OTHER_FILES = 64 << 20, 2_000
_DATA = ("data", "data[-_.]*", "*[-_.]data", "dataset*", "input", "inputs")
_OUTPUTS = (
    *("out", "out[-_]*", "output*", "results*", "runs", "log", "logs", "lightning_logs", "tb_logs", "tensorboard"),
    *("wandb", "mlruns", "mlartifacts", "checkpoint", "checkpoints", "checkpoint[-_]*", "ckpt*", "saved_models"),
    "multirun",
)
_OUTPUT_FILES = ("mlflow.db", "mlruns.db", "checkpoint*", "ckpt*")
_CACHES = (".cache", ".*_cache", ".ipynb_checkpoints", ".git", *_COMPILED, "*.pyc")
_WRITTEN_WHOLE = frozenset(  # files that programs write again under the same name, and that may be large
    {
        *(".pt", ".pth", ".ckpt", ".safetensors", ".keras", ".h5", ".onnx", ".pkl", ".pickle", ".joblib"),
        *(".msgpack", ".db", ".sqlite", ".sqlite3", ".log"),
    }
)
_SOURCES = frozenset(  # endings, in small letters, of files of source
    {
        *(".py", ".pyx", ".ipynb", ".sh", ".bash", ".zsh", ".jl", ".r", ".m", ".pl", ".lua", ".rb"),
        *(".c", ".h", ".cc", ".hh", ".cpp", ".hpp", ".cxx", ".hxx", ".cu", ".cuh", ".f", ".for", ".f90", ".f95"),
        *(".f03", ".f08", ".rs", ".go", ".java", ".scala", ".kt", ".swift"),
    }
)
_OF_A_HOME = re.compile(r"(.*?)(?:^|/)runs/[^/]+/[^/]+/(?:run\.json|job\.sh)$")


_SAFE_DIRECTORY = re.compile(r"--add safe\.directory '?([^\n']+)")


@dataclass(slots=True)
class WorkTree:
    """A working tree as it is now; all paths are relative to *top*.

    *files* and the symbolic *links* are kept as the code. Of the rest, folders in *empty* begin empty, files in
    *copied* are copied for each run from where they lie when it starts, and what is in *shared* is linked to.
    """

    top: Path
    files: list[File] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    copied: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)  # by git
    homes: list[str] = field(default_factory=list)  # other homes of hpcml, of which nothing is in any of these

    @property
    def size_bytes(self) -> int:
        """The sum of the sizes of *files*; what links point to does not count."""
        return sum(file.size for file in self.files)

    def is_ignored(self, path: PurePosixPath) -> bool:
        """Tell whether git ignores *path*, or a folder above it."""
        return any(str(part) in self.ignored for part in (path, *path.parents))


def top_of(folder: Path) -> Path | None:
    """Return the root of the working tree around *folder*; None where there is none, or no git."""
    said = git(folder, "rev-parse", "--show-toplevel")
    return None if not said else Path(os.fsdecode(said.rstrip(b"\n")))


def distrusted_by_git(folder: Path) -> str | None:
    """Return the repository around *folder* of which git tells nothing, since it is another user's; None for none.

    That is what it answers since 2.35.2 (git config, safe.directory).
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse"],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _SAFE_DIRECTORY.search(os.fsdecode(done.stderr)) if done.returncode != 0 else None
    return None if found is None else found[1]


def is_everything(folder: Path) -> bool:
    """Tell whether *folder* is the user's home or the root of the file system, and git does not say what is code there.

    Much else lies in such a folder, so no copy is made of it.
    """
    real = Path(os.path.realpath(folder))
    return real in (Path("/"), Path(os.path.realpath(home_of_user()))) and top_of(folder) is None


def read_work_tree(folder: Path, places: Places) -> WorkTree:
    """Return the working tree around *folder*, but for what hpcml keeps in it; without git, or ignored there, *folder*.

    HPCML_HOME may lie in the tree and is not copied into itself; where *folder* lies in HPCML_HOME, hpcml's own folders
    and its store are left out. Submodules and other repositories inside are read too. Raises `ConfigError` where there
    are more than 20,000 files and links, or more than 256 MiB, and where *folder* lies in one of hpcml's own folders.
    """
    top, without = top_of(folder), _left_out(folder, places)
    if top is not None:
        tree = WorkTree(top=top)
        _read(tree, PurePosixPath(), without)
        if not tree.is_ignored(PurePosixPath(os.path.relpath(os.path.realpath(folder), top))):
            sorter = _Sorter(tree, without)
            for name in sorter.small_first(tree.ignored):
                sorter.take(PurePosixPath(name))
            _refuse_too_large(tree)
            return tree
    tree = WorkTree(top=Path(os.path.realpath(folder)))
    sorter = _Sorter(tree, without, is_code=True)
    sorter.leave_out_home(PurePosixPath())
    for name in sorter.names_in(PurePosixPath()):
        sorter.take(PurePosixPath(name))
    _refuse_too_large(tree)
    return tree


def beside(top: Path) -> dict[str, str]:
    """Return the folders of data beside *top*, by their names: programs read ../data."""
    try:
        names = sorted(os.listdir(top.parent))  # noqa: PTH208 - names will do
    except OSError:
        return {}
    found = {name: top.parent / name for name in names if name != top.name and _is_like(name, _DATA)}
    return {name: str(place) for name, place in found.items() if place.is_dir()}


@dataclass(slots=True)
class _Sorter:
    """Decides what becomes of each entry that git does not keep, and notes it in *tree*."""

    tree: WorkTree
    without: list[str]
    is_code: bool = False  # nobody but this decides what is code
    bytes_left: int = _MOST_OTHER_BYTES
    files_left: int = _MOST_OTHER_FILES

    def take(self, path: PurePosixPath) -> None:
        """Decide on what lies at *path*; what hpcml keeps there is left out."""
        place = self.tree.top / path
        if _is_like(path.name, _CACHES) or any(_lies_in(place, own) for own in self.without):
            return
        try:
            status = place.stat()
        except OSError:
            return  # gone, a link to nothing, or not for us to read
        if stat.S_ISREG(status.st_mode):
            self._take_file(path, place, status)
        elif stat.S_ISDIR(status.st_mode):
            self._take_folder(path, place)

    def _take_folder(self, path: PurePosixPath, place: Path) -> None:
        if not place.is_symlink() and self.leave_out_home(path):
            for name in self.names_in(path):
                self.take(path / name)
            return
        is_data = _is_like(path.name, _DATA) and not (place / "__init__.py").is_file()
        is_shared = place.is_symlink() or is_data or path.name == ".venv" or is_environment(place)
        if _is_like(path.name, _OUTPUTS) and not is_environment(place) and not (self.is_code and _has_source(place)):
            self.tree.empty.append(str(path))
        elif is_shared:
            self.tree.shared[str(path)] = str(place)
        elif path.name.startswith(".") and self.is_code:
            return
        elif not (self._fits(place) or (self.is_code and _has_source(place))):
            self.tree.shared[str(path)] = str(place)
        elif names := self.names_in(path):
            for name in names:
                self.take(path / name)
        else:
            self.tree.empty.append(str(path))

    def leave_out_home(self, path: PurePosixPath) -> bool:
        """Tell whether the folder at *path* is a home of hpcml, which is noted and taken nothing of then."""
        place = self.tree.top / path
        if not is_home(str(place)):
            return False
        self.tree.homes.append(str(path))
        self.without.extend(_kept_in(place))
        return True

    def names_in(self, path: PurePosixPath) -> list[str]:
        """Return the names in a folder, small files first, folders last."""
        try:
            names = os.listdir(self.tree.top / path)  # noqa: PTH208 - names will do
        except OSError:
            return []
        return [PurePosixPath(name).name for name in self.small_first(str(path / name) for name in names)]

    def small_first(self, paths: Iterable[str]) -> list[str]:
        """Return *paths* so that small files come first, and folders last."""

        def order(path: str) -> tuple[bool, int, str]:
            try:
                status = (self.tree.top / path).stat()
            except OSError:
                return False, 0, path
            is_folder = stat.S_ISDIR(status.st_mode)
            return is_folder, 0 if is_folder else status.st_size, path

        return sorted(paths, key=order)

    def _take_file(self, path: PurePosixPath, place: Path, status: os.stat_result) -> None:
        if not self.is_code and _is_like(path.name, _OUTPUT_FILES) and path.suffix.lower() not in _SOURCES:
            return
        is_source = self.is_code and path.suffix.lower() in _SOURCES
        if is_source or (status.st_size <= self.bytes_left and self.files_left > 0):
            self.bytes_left -= status.st_size
            self.files_left -= 1
            executable = bool(status.st_mode & stat.S_IXUSR)
            self.tree.files.append(File(path=str(path), source=place, is_executable=executable, size=status.st_size))
        elif _WRITTEN_WHOLE & {suffix.lower() for suffix in path.suffixes} and not _lies_in_data(path):
            self.tree.copied[str(path)] = str(place)
        else:
            self.tree.shared[str(path)] = str(place)

    def _fits(self, place: Path) -> bool:
        bytes_left, files_left = self.bytes_left, self.files_left
        for entry in _walked(place):
            files_left -= 1
            bytes_left -= _size(entry)
            if bytes_left < 0 or files_left < 0:
                return False
        return True


def _walked(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yield the files and links below *folder*; what cannot be read is left out."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _walked(entry.path)
                else:
                    yield entry
    except OSError:
        return


def _has_source(folder: Path) -> bool:
    some = islice(_walked(folder), _MOST_FILES)
    return any(PurePosixPath(entry.name).suffix.lower() in _SOURCES for entry in some)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0


def _lies_in_data(path: PurePosixPath) -> bool:
    return any(_is_like(folder, _DATA) for folder in path.parent.parts)


def _is_like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def git(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None, given: bytes | None = None
) -> bytes | None:
    """Run git in *folder* with the arguments *words*; return its standard output as bytes.

    Returns None where git fails (a status other than 0), is not installed, or takes longer than a minute, as on a file
    system that does not answer. *environ* is added to this process's environment; *given* is git's standard input.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            env={**os.environ, **(environ or {})},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _left_out(folder: Path, places: Places) -> list[str]:
    """Return the real paths that no copy of *folder* has anything of."""
    home, real = os.path.realpath(places.home), os.path.realpath(folder)
    if not _lies_in(real, home):
        return [home]
    for own in places.own:
        if _lies_in(real, os.path.realpath(own)):
            raise ConfigError(
                f"the code folder {folder} lies in {own}, which is hpcml's: start from a folder of your own, or set "
                "schedule.snapshot=none"
            )
    return _kept_in(places.home)


def _kept_in(home: Path) -> list[str]:
    """Return the real paths of what hpcml keeps in *home*."""
    places = Places(home=home, store_url="")
    return [os.path.realpath(path) for path in (*places.own, *home.glob("store.db*"))]


def _read(tree: WorkTree, prefix: PurePosixPath, without: list[str]) -> None:
    """Add the repository at *prefix* to *tree*, and those inside it; what hpcml keeps in homes is *without* then."""
    names = sorted(_listed(tree.top / prefix, "-co"))
    _leave_out_homes(tree, prefix, names, without)
    for name in names:
        path = prefix / name
        place = tree.top / path
        try:
            status = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed, and git has not been told
        if any(_lies_in(place, own) for own in without):
            continue
        if stat.S_ISDIR(status.st_mode):  # a submodule, or another repository
            if top_of(place) == place:
                _read(tree, path, without)
        elif stat.S_ISLNK(status.st_mode):
            tree.links.append(Link(path=str(path), target=_target(tree.top, path)))
        elif stat.S_ISREG(status.st_mode):
            executable = bool(status.st_mode & stat.S_IXUSR)
            tree.files.append(File(path=str(path), source=place, is_executable=executable, size=status.st_size))
    for name in sorted(_listed(tree.top / prefix, "-oi", "--directory")):
        path = prefix / name
        if not tree.is_ignored(path):  # git names a folder and one in it, where the inner one is all that the outer has
            tree.ignored.add(str(path))


def _leave_out_homes(tree: WorkTree, prefix: PurePosixPath, names: Sequence[str], without: list[str]) -> None:
    for home in sorted({prefix / told[1] for name in names if (told := _OF_A_HOME.match(name))}):
        if is_home(str(tree.top / home)) and not any(_lies_in(tree.top / home / "runs", own) for own in without):
            tree.homes.append(str(home))
            without += _kept_in(tree.top / home)


def _listed(folder: Path, *flags: str) -> set[str]:
    said = git(folder, "ls-files", "-z", "--exclude-standard", *flags)
    if said is None:
        raise ConfigError(
            f"git cannot list the files of {folder}: set schedule.snapshot=none to run without a snapshot"
        )
    return {os.fsdecode(name) for name in said.split(b"\0") if name}


def _lies_in(place: Path | str, folder: str) -> bool:
    return str(place) == folder or str(place).startswith(folder + os.sep)


def _target(top: Path, path: PurePosixPath) -> str:
    """Return what a link says in the copy: inside the tree the same, relative place; else where it points now."""
    place = top / path
    meant = os.path.normpath(place.parent / place.readlink())
    if _lies_in(Path(meant), str(top)):
        return os.path.relpath(meant, place.parent)
    return meant


def _refuse_too_large(tree: WorkTree) -> None:
    count = len(tree.files) + len(tree.links) + len(tree.copied) + len(tree.shared)
    if tree.size_bytes <= MOST_BYTES and count <= _MOST_FILES:
        return
    raise ConfigError(
        f"the code of {tree.top} is too large to be copied for the job: {count} files, {tree.size_bytes >> 20} MiB, "
        f"the largest {', '.join(_biggest(tree.files))} (limits: {_MOST_FILES} files, {MOST_BYTES >> 20} MiB): let "
        ".gitignore name what is no code (git init where there is no git), or set schedule.snapshot=git or none"
    )


def _biggest(files: list[File]) -> Iterator[str]:
    for file in sorted(files, key=lambda file: file.size, reverse=True)[:_NAMED]:
        yield f"{file.path} ({file.size / (1 << 20):.1f} MiB)"
