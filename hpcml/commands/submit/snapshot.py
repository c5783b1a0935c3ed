"""The snapshot of the code that a run executes, and the plan of the working directory that the run starts in.

Later edits do not reach a waiting job: the code is copied below ``HPCML_HOME/code`` at submission, and the agent makes
each run a copy of its own from that. Three rules, with settings in `schedule`, say what a run finds there:

1. What git tracks or would add is code; where there is no git, all files are. Code is copied, up to `snapshot_mib`.
2. A folder that git ignores is a link to the user's own; where its name is in `fresh`, an empty folder instead.
3. Files that git ignores are copied, small ones first, up to `ignored_mib` together; larger ones are links.

Without git the names in `fresh` and `linked` say which folders are no code. Environments are always links. What hpcml
keeps in its home is left out.
"""

from __future__ import annotations

import functools
import os
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath

from hpcml.commands.submit import code_store
from hpcml.commands.submit.code_store import File, Link
from hpcml.commands.submit.plan import Planned
from hpcml.commands.submit.provenance import distrusted_by_git, git, top_of
from hpcml.errors import ConfigError
from hpcml.model.run import Schedule, Snapshot
from hpcml.paths import Places, home_of_user
from hpcml.runs.layout import RunDir, program_packages
from hpcml.runs.plan import Plan, Staging
from hpcml.runs.working_directory import is_environment
from hpcml.units import one_or_many

_MOST_FILES = 20_000
_MOST_NAMED = 8  # in a line of the dry run
_BIGGEST_NAMED = 3
_NEVER = frozenset({".git", "__pycache__"})  # Python might take what was compiled for that of the copy


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCode:
    """The copy of a run's code, and the plan that starts in it.

    `code` None: nothing was copied, and the job runs what lies in its folder when it starts. `packages` is a folder
    with copies of hpcml_client and hpcml_train, which programs import; None: the job uses those of its agent.
    """

    plan: Plan
    code: Path | None
    packages: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSource:
    """The folder that code comes from, and the rules for its copy; runs with equal sources share one."""

    folder: Path
    rules: Schedule
    is_recipe: bool = False

    def __hash__(self) -> int:
        return hash(self.folder)  # the lists of the rules have none

    @property
    def is_copied(self) -> bool:
        """Whether a copy is asked for."""
        return self.rules.snapshot is not Snapshot.none


@dataclass(slots=True)
class Tree:
    """What is copied of a working tree, and what each run finds beside it; all paths are relative to *top*.

    *files* and the symbolic *links* are code. Folders in *empty* begin empty; what is in *linked* is a link to the
    user's own, and so is in *beside* what lies beside *top*. *remarks* are lines for the user.
    """

    top: Path
    rules: Schedule
    left_out: list[str] = field(default_factory=list)  # real paths
    files: list[File] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    linked: dict[str, str] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    ignored: list[File] = field(default_factory=list)  # by git, until `add_ignored` decides

    def add_repository(self, prefix: PurePosixPath) -> None:
        """Add the repository at *prefix*, and those inside it."""
        names = _listed(self.top / prefix, "-co")
        # An environment that git was not told to ignore
        environments = {path.parent for name in names if (path := PurePosixPath(name)).name == "pyvenv.cfg"}
        environments.discard(PurePosixPath())
        for folder in sorted(environments):
            self._add_link(prefix / folder)
        for name in names:
            if not environments or environments.isdisjoint(PurePosixPath(name).parents):
                self._add(prefix / name, self.files)
        seen: set[PurePosixPath] = set()
        for path in map(PurePosixPath, _listed(self.top / prefix, "-oi", "--directory")):
            if seen.isdisjoint(path.parents):  # git names a folder, and one that is all it holds
                seen.add(path)
                self._sort(prefix / path, is_ignored=True)

    def add_folder(self, path: PurePosixPath) -> None:
        """Add what lies in a folder that git knows nothing of."""
        try:
            names = sorted(os.listdir(self.top / path))  # noqa: PTH208 - names will do
        except OSError:
            return  # gone, or not for us to read
        for name in names:
            self._sort(path / name, is_ignored=False)
        if not names and path.parts:
            self.empty.append(str(path))

    def add_ignored(self) -> None:
        """Add the files that git ignores, as copies while there is room, then as links."""
        most_mib, large = self.rules.ignored_mib, []
        room = most_mib << 20
        for file in sorted(self.ignored, key=lambda file: (file.size, file.path)):
            room -= file.size
            if room >= 0:
                self.files.append(file)
            else:
                self._add_link(PurePosixPath(file.path))
                large.append(file)
        if large:
            self.remarks.append(
                f"each run has a link to yours, since schedule.ignored_mib={most_mib} is the most that is copied of "
                f"files that git ignores: {_biggest(large)}"
            )

    def _sort(self, path: PurePosixPath, *, is_ignored: bool) -> None:
        """Add what lies at *path*, by its name and kind; *is_ignored*: by git."""
        place = self.top / path
        if path.name in _NEVER or self._is_left_out(place):
            return
        is_folder = os.path.isdir(place)  # noqa: PTH112 - one that is not for us to read is none
        is_package = is_folder and (place / "__init__.py").is_file()  # of Python, called data or results
        is_fresh = not is_package and _is_named(path.name, self.rules.fresh, is_folder=is_folder)
        is_linked = not is_package and _is_named(path.name, self.rules.linked, is_folder=is_folder)
        if is_folder and is_environment(place):
            self._add_link(path)
        elif is_fresh and (is_folder or is_ignored):
            if is_folder:
                self.empty.append(str(path))
        elif is_linked or (is_folder and is_ignored):
            self._add_link(path)
        elif is_folder and not place.is_symlink():
            self.add_folder(path)
        else:
            self._add(path, self.ignored if is_ignored else self.files)

    def _add(self, path: PurePosixPath, files: list[File]) -> None:
        """Add a file to *files*, a symbolic link as what it is, and a repository inside."""
        place = self.top / path
        try:
            status = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return  # removed, and git has not been told
        if self._is_left_out(place):
            return
        if stat.S_ISREG(status.st_mode):
            files.append(_file(path, place, status))
        elif stat.S_ISLNK(status.st_mode):
            target = _target(self.top, path)
            if os.path.isabs(target) and os.path.exists(target):  # noqa: PTH110, PTH117 - a text
                self.linked[str(path)] = target
            else:
                self.links.append(Link(path=str(path), target=target))
        elif stat.S_ISDIR(status.st_mode) and top_of(place) == place:  # a submodule, or another repository
            self.add_repository(path)
        elif stat.S_ISDIR(status.st_mode):
            self.remarks.append(
                f"{path}: not checked out, and each run lacks it: git submodule update --init --recursive, if the "
                "program needs it"
            )

    def _add_link(self, path: PurePosixPath) -> None:
        self.linked[str(path)] = str(self.top / path)

    def _is_left_out(self, place: Path) -> bool:
        return any(_lies_in(str(place), own) for own in self.left_out)


def keep_code(places: Places) -> Callable[[Planned, RunDir], KeptCode]:
    """Return a function that copies the code of a planned run below ``HPCML_HOME/code``; equal code is kept once.

    A program of the user's own starts in a copy of that in its run directory, which the agent makes; a recipe starts
    in the kept copy of its folder. With ``schedule.snapshot=none``, and in a home directory, nothing is copied.

    The function raises `ConfigError` where the code is too large, git fails, or the copy cannot be written. Folders are
    read once: further runs with the same folder and rules share the copy.
    """

    @functools.cache
    def copy_of(source: CodeSource) -> _Copy | None:
        tree = read_tree(source, places)
        return None if tree is None else _Copy(tree, code_store.keep(places.code, tree.files, tree.links))

    @functools.cache
    def packages() -> Path:
        return code_store.keep(places.code, [file for package in program_packages() for file in _files_of(package)])

    def keep(item: Planned, run_dir: RunDir) -> KeptCode:
        source = source_of(item)
        copy = copy_of(source)
        if copy is None:  # hpcml's own folders are not seen inside an image
            return KeptCode(plan=item.plan, code=None, packages=packages() if item.wants_image else None)
        if source.is_recipe:
            python, script = item.plan.argv
            argv = [python, str(copy.kept / source.folder.name / Path(script).name)]
            plan = replace(item.plan, argv=argv, profiled=_profiled(item.plan, argv))
        else:
            plan = _moved(item.plan, copy, run_dir)
        return KeptCode(plan=plan, code=copy.kept, packages=packages())

    return keep


def check(planned: Sequence[Planned], places: Places) -> list[str]:
    """Return a line for each thing about the code of *planned* that may not be meant; nothing is written.

    Raises `ConfigError` where the code cannot be copied, or where runs would share their files unasked.
    """
    counts = Counter(map(source_of, planned))
    return [line for source, count in counts.items() for line in _remarks(source, count, read_tree(source, places))]


def _remarks(source: CodeSource, count: int, tree: Tree | None) -> Iterator[str]:
    if tree is not None:
        yield from tree.remarks
    elif source.is_copied and count > 1:
        raise ConfigError(
            f"{count} runs would start in {source.folder} and share what they write there, since no copy is made of "
            "it: cd to the folder of the program (or workload.cwd), or set schedule.snapshot=none"
        )
    elif source.is_copied:
        yield (
            f"the program starts in {source.folder} itself, of which no copy is made: cd to the folder of the program "
            "(or workload.cwd) to give each run a copy of its own"
        )
    elif count > 1 and not source.is_recipe:
        yield (
            f"schedule.snapshot=none: {count} runs start in {source.folder} and share what they write there: leave it "
            "at copy to give each run a folder of its own"
        )


def foreseen(planned: Sequence[Planned], places: Places) -> list[str]:
    """Return a line for each place that the code of *planned* would come from, for ``hpcml run --dry-run``.

    Nothing is written. Raises `ConfigError` where the code cannot be copied.
    """
    sources = dict.fromkeys(map(source_of, planned))
    return list(dict.fromkeys(line for source in sources for line in _foreseen(source, places)))


def _foreseen(source: CodeSource, places: Places) -> Iterator[str]:
    tree = read_tree(source, places)
    if tree is None:
        yield f"code: what lies in {source.folder} when the job starts"
        return
    count, own = len(tree.files), "" if source.is_recipe else "; each run starts in a copy of its own"
    yield f"code: a copy of {count} {one_or_many(count, 'files')} of {tree.top}, kept in {places.code}{own}"
    linked = [*tree.linked, *(f"../{name}" for name in tree.beside)]
    for what, found in (("shared by all runs (links to your own)", linked), ("empty in each run", tree.empty)):
        if found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            yield f"code: {what}: {', '.join(found[:_MOST_NAMED])}{more}"


def source_of(item: Planned) -> CodeSource:
    """Return where the code of a planned run comes from."""
    is_recipe = item.run.workload.command is None
    folder = Path(item.plan.argv[1]).parent if is_recipe else item.code_folder
    return CodeSource(folder=folder, rules=item.run.schedule, is_recipe=is_recipe)


def read_tree(source: CodeSource, places: Places) -> Tree | None:
    """Return what is copied for runs of *source*, as it is now; None where nothing is.

    The code is that of the repository around the folder; without git, or where git ignores the folder, what lies in it.
    Raises `ConfigError` where it is too large, and where the folder lies in one of hpcml's own.
    """
    folder = source.folder
    if not source.is_copied or (not source.is_recipe and is_everything(folder)):
        return None
    if source.is_recipe:
        tree = Tree(top=folder, rules=source.rules, files=_files_of(folder))
        _refuse_too_large(tree, source, "keep its data elsewhere (data.path)")
        return tree
    top, real = top_of(folder), Path(os.path.realpath(folder))
    is_git = top is not None and (real == top or git(folder, "check-ignore", "-q", ".") is None)
    tree = Tree(top if top is not None and is_git else real, source.rules, _left_out(folder, places))
    if is_git:
        tree.add_repository(PurePosixPath())
    else:
        tree.add_folder(PurePosixPath())
    tree.add_ignored()
    tree.beside = _beside(tree.top, source.rules.linked)
    if top is None and (own := distrusted_by_git(folder)) is not None:
        tree.remarks.append(
            f"git tells nothing of {own}, which belongs to somebody else: no commit is recorded, and all files count "
            f"as code; git config --global --add safe.directory {shlex.quote(own)} says that you trust them"
        )
    _refuse_too_large(tree, source, "let .gitignore (without git: schedule.linked) name what is no code")
    return tree


def _listed(folder: Path, *flags: str) -> list[str]:
    names = git(folder, "ls-files", "-z", "--exclude-standard", *flags)
    if names is None:
        raise ConfigError(
            f"git cannot list the files of {folder}: set schedule.snapshot=none to run without a snapshot"
        )
    return sorted({os.fsdecode(name) for name in names.split(b"\0") if name})


def _is_named(name: str, patterns: Sequence[str], *, is_folder: bool) -> bool:
    """Tell whether one of *patterns* matches; those with a slash at the end are for folders, as in .gitignore."""
    fitting = (pattern for pattern in patterns if is_folder or not pattern.endswith("/"))
    return any(fnmatchcase(name.lower(), pattern.removesuffix("/").lower()) for pattern in fitting)


def _beside(top: Path, patterns: Sequence[str]) -> dict[str, str]:
    """Return the folders beside *top* that are linked: programs read ../data."""
    try:
        names = sorted(os.listdir(top.parent))  # noqa: PTH208 - names will do
    except OSError:
        return {}
    found = [name for name in names if name != top.name and _is_named(name, patterns, is_folder=True)]
    return {name: str(top.parent / name) for name in found if (top.parent / name).is_dir()}


def is_everything(folder: Path) -> bool:
    """Tell whether *folder* is the user's home or the root of the file system, and git does not say what is code there.

    Much else lies in such a folder, so no copy is made of it.
    """
    real = os.path.realpath(folder)
    return real in ("/", os.path.realpath(home_of_user())) and top_of(folder) is None


def _left_out(folder: Path, places: Places) -> list[str]:
    """Return the real paths that no copy of *folder* has anything of: the home, or what hpcml keeps around *folder*."""
    home, real = os.path.realpath(places.home), os.path.realpath(folder)
    if not _lies_in(real, home):
        return [home]
    own = [os.path.realpath(path) for path in places.own]
    for path in own:
        if _lies_in(real, path):
            raise ConfigError(
                f"the code folder {folder} lies in {path}, which is hpcml's: start from a folder of your own, or set "
                "schedule.snapshot=none"
            )
    return [*own, *(os.path.realpath(path) for path in places.home.glob("store.db*"))]


def _lies_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder + os.sep)


def _target(top: Path, path: PurePosixPath) -> str:
    """Return what a link says in the copy: inside the tree the same, relative place; else where it points now."""
    place = top / path
    meant = os.path.normpath(place.parent / place.readlink())
    return os.path.relpath(meant, place.parent) if _lies_in(meant, str(top)) else meant


def _file(path: PurePosixPath, place: Path, status: os.stat_result) -> File:
    is_executable = bool(status.st_mode & stat.S_IXUSR)
    return File(path=str(path), source=place, is_executable=is_executable, size=status.st_size)


def _files_of(folder: Path) -> list[File]:
    """Return the files of a recipe or of a package, below the folder's own name; hidden ones are no part of it."""
    files = []
    for place in sorted(folder.rglob("*")):
        inside = place.relative_to(folder)
        if place.is_file() and not any(part.startswith(".") or part in _NEVER for part in inside.parts):
            path = PurePosixPath(folder.name) / inside
            files.append(replace(_file(path, place, place.stat()), is_executable=False))
    return files


def _refuse_too_large(tree: Tree, source: CodeSource, remedy: str) -> None:
    size_bytes, count = sum(file.size for file in tree.files), len(tree.files) + len(tree.links)
    if size_bytes > source.rules.snapshot_mib << 20 or count > _MOST_FILES:
        raise ConfigError(
            f"the code of {tree.top} is too large to be copied for the job: {count} files, {size_bytes >> 20} MiB, the "
            f"largest {_biggest(tree.files)} (limits: {_MOST_FILES} files, schedule.snapshot_mib="
            f"{source.rules.snapshot_mib}): {remedy}, or set schedule.snapshot=none"
        )


def _biggest(files: Sequence[File]) -> str:
    chosen = sorted(files, key=lambda file: file.size, reverse=True)[:_BIGGEST_NAMED]
    more = f" and {len(files) - _BIGGEST_NAMED} more" if len(files) > _BIGGEST_NAMED else ""
    return ", ".join(f"{file.path} ({file.size / (1 << 20):.1f} MiB)" for file in chosen) + more


@dataclass(frozen=True)
class _Copy:
    """A copy of code below ``HPCML_HOME/code``."""

    tree: Tree
    kept: Path
    known: dict[str, str | None] = field(default_factory=dict)  # what `inside` has found out

    @property
    def name(self) -> str:
        """The name of the folder in a working directory that stands for the user's."""
        return self.tree.top.name or "project"

    @cached_property
    def staging(self) -> Staging:
        """What the working directory of each run is made of, which is the same for all of them."""
        return Staging(
            code=str(self.kept),
            project=self.name,
            original=str(self.tree.top),
            empty=[f"{self.name}/{path}" for path in self.tree.empty],
            shared={**{f"{self.name}/{path}": mine for path, mine in self.tree.linked.items()}, **self.tree.beside},
        )

    @cached_property
    def paths(self) -> frozenset[str]:
        """All files and folders that a run has copies of."""
        names = [*(file.path for file in self.tree.files), *(link.path for link in self.tree.links)]
        places = map(PurePosixPath, names)
        return frozenset(str(path) for place in places for path in (place, *place.parents))

    def inside(self, path: str) -> str | None:
        """Return where below its root the copy of the absolute *path* lies; None where there is none."""
        if path not in self.known:
            place = Path(os.path.realpath(Path(path).parent)) / Path(path).name
            inside = os.path.relpath(place, self.tree.top)
            is_there = inside in self.paths or any(_lies_in(inside, folder) for folder in self.tree.empty)
            self.known[path] = inside if is_there else None
        return self.known[path]


def _moved(plan: Plan, copy: _Copy, run_dir: RunDir) -> Plan:
    """Return *plan* with its working directory, arguments and environment pointing into the run's own copy of the code.

    Paths of which there is no copy (data, anything outside the tree) stay as they are. In variables such as PYTHONPATH
    each part between colons is looked at. Python imports from the copy what `pip install -e` or PYTHONPATH let it
    import from the tree: the parts of PYTHONPATH in it, its root and ``src/`` come first.
    """
    project = str(run_dir.work / copy.name)

    def moved(path: str) -> str:
        inside = copy.inside(path) if path.startswith(os.sep) else None
        return path if inside is None else os.path.normpath(f"{project}/{inside}")

    environment = {
        name: None if value is None else os.pathsep.join(map(moved, value.split(os.pathsep)))
        for name, value in plan.environment.items()
    }
    environment.setdefault("GIT_CEILING_DIRECTORIES", str(run_dir.work))  # no repository around the home is the code's
    argv = [_word(word, plan.cwd, moved) for word in plan.argv]
    moved_parts = (path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if moved(path) != path)
    roots = [project, *([f"{project}/src"] if "src" in copy.paths else [])]
    return replace(
        plan,
        argv=argv,
        profiled=_profiled(plan, argv),
        cwd=os.path.normpath(f"{project}/{os.path.relpath(os.path.realpath(plan.cwd), copy.tree.top)}"),
        environment=environment,
        staging=copy.staging,
        python_path=list(dict.fromkeys([*map(moved, moved_parts), *roots])),
    )


def _word(word: str, cwd: str, moved: Callable[[str], str]) -> str:
    """Return one argument of the command line with its path, also behind ``--option=``, moved into the copy."""
    option, sign, value = word.partition("=")
    if word.startswith("-") and sign:
        return f"{option}={_word(value, cwd, moved)}"
    if word.startswith(".."):  # beside the copy there is nothing of what is beside the tree
        meant = os.path.normpath(Path(cwd) / word)
        return moved(meant) if os.path.lexists(meant) else word
    return moved(word)


def _profiled(plan: Plan, argv: Sequence[str]) -> list[str]:
    """Return *argv* behind the profiler of *plan*; empty where it has none."""
    profiler = plan.profiled[: -len(plan.argv)] if plan.profiled else []
    return [*profiler, *argv] if profiler else []
