"""The snapshot of the code that a run executes, taken at submission so that later edits do not reach waiting jobs."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from hpcml.commands.submit import code_store
from hpcml.commands.submit.code_store import File
from hpcml.commands.submit.import_paths import imported_folders
from hpcml.commands.submit.plan import Planned
from hpcml.commands.submit.program import start_of
from hpcml.commands.submit.provenance import Code, describe_code
from hpcml.commands.submit.work_tree import (
    MOST_BYTES,
    WorkTree,
    beside,
    distrusted_by_git,
    git,
    is_everything,
    read_work_tree,
    top_of,
)
from hpcml.errors import ConfigError, why_not
from hpcml.model.run import Snapshot
from hpcml.paths import Places
from hpcml.runs.layout import RunDir, program_packages
from hpcml.runs.plan import Plan, Staging
from hpcml.runs.private import FOLDER, make_folder
from hpcml.units import one_or_many

_SUBMODULE = b"160000 "


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCode:
    """The copy of a run's code, and the plan that starts in it.

    `code` None: nothing was copied, and the job runs what lies in its folder when it starts. `packages` are copies of
    hpcml_client and hpcml_train, which programs import; empty: the job uses those of the agent that starts it. They lie
    in one folder, in which nothing else is; those of plans of older versions in one each.
    """

    plan: Plan
    code: Path | None
    packages: tuple[Path, ...]  # that programs import; none: the agent's own


@dataclass(frozen=True)
class _Tree:
    """A copy of code below ``HPCML_HOME/code``, and what a run finds beside it."""

    top: Path
    kept: Path
    empty: list[str] = field(default_factory=list)
    copied: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    known: dict[str, str | None] = field(default_factory=dict)  # what `inside` has found out
    folders: dict[str, str] = field(default_factory=dict)  # and `folder`

    @property
    def name(self) -> str:
        """The name of the folder in a working directory that stands for the user's."""
        return self.top.name or "project"

    @cached_property
    def staging(self) -> Staging:
        """What the working directory of each run is made of, which is the same for all of them."""
        name = self.name
        return Staging(
            code=str(self.kept),
            project=name,
            original=str(self.top),
            empty=[f"{name}/{path}" for path in self.empty],
            copied={f"{name}/{path}": source for path, source in self.copied.items()},
            shared={**{f"{name}/{path}": source for path, source in self.shared.items()}, **beside(self.top)},
        )

    def inside(self, path: str) -> str | None:
        """Return where in a run's copy the absolute *path* lies; None where it has none, so that the path stays."""
        if path not in self.known:
            self.known[path] = self._looked_up(path)
        return self.known[path]

    def folder(self, path: str) -> str:
        """Return the counterpart of the folder *path*, which lies in the tree, below the copy."""
        if path not in self.folders:
            self.folders[path] = os.path.relpath(os.path.realpath(path), self.top)
        return self.folders[path]

    def _looked_up(self, path: str) -> str | None:
        place = Path(os.path.realpath(Path(path).parent)) / Path(path).name
        if not place.is_relative_to(self.top):
            return None
        inside = place.relative_to(self.top)
        copy = self.kept / inside
        is_kept = copy.exists() and Path(os.path.realpath(copy)).is_relative_to(os.path.realpath(self.kept))
        is_own = any(str(above) in (*self.empty, *self.copied) for above in (inside, *inside.parents))
        return str(inside) if is_kept or is_own else None


def keep_code(places: Places, codes: Mapping[Path, Code]) -> Callable[[Planned, RunDir], KeptCode]:
    """Return a function that copies the code of a planned run below ``HPCML_HOME/code``; equal code is kept once.

    What is copied depends on ``schedule.snapshot``: *none* copies nothing, *git* checks out the commit with its
    uncommitted changes, *copy* takes the files of the working tree that git tracks or would add, and what lies beside
    them as `work_tree` decides. A program of the user's own starts in a copy of that in its run directory, which the
    agent makes. A recipe's own folder is copied unless the mode is *none*. *codes* has, for each run's code folder, its
    commit and diff as git reports them.

    The function raises `ConfigError` where the code is too large, git fails, or the copy cannot be written. Folders are
    read once: further runs with the same folder and mode share the copy.
    """
    return _Keeper(places, codes)


@dataclass(frozen=True, slots=True)
class _Keeper:
    """What `keep_code` returns; it remembers what it has read and copied."""

    places: Places
    codes: Mapping[Path, Code]
    trees: dict[tuple[Snapshot, Path], _Tree] = field(default_factory=dict)
    folders: dict[Path, Path] = field(default_factory=dict)
    packages: list[Path] = field(default_factory=list)
    imports: dict[tuple[str, str, int], list[str]] = field(default_factory=dict)
    is_everything: Callable[[Path], bool] = field(default_factory=lambda: functools.cache(is_everything))

    def __call__(self, item: Planned, run_dir: RunDir) -> KeptCode:
        mode = _mode_of(item, self.is_everything)
        if mode is Snapshot.none:
            # hpcml's own folders are not seen inside an image
            return KeptCode(plan=item.plan, code=None, packages=self._packages() if item.wants_image else ())
        if item.run.workload.command is None:
            python, script = item.plan.argv
            recipe = self._folder(Path(script).parent)
            argv = [python, str(recipe / Path(script).name)]
            plan = replace(item.plan, argv=argv, profiled=_profiled(item.plan, argv))
            return KeptCode(plan=plan, code=recipe.parent, packages=self._packages())
        tree = self._tree(mode, item.code_folder)
        imports = None if item.wants_image else self._imports(item.plan, tree)  # an image has packages of its own
        plan = _moved(item.plan, tree, run_dir, imports)
        return KeptCode(plan=plan, code=tree.kept, packages=self._packages())

    def _folder(self, folder: Path) -> Path:
        if folder not in self.folders:
            self.folders[folder] = code_store.keep(self.places.code, _files_of(folder)) / folder.name
        return self.folders[folder]

    def _packages(self) -> tuple[Path, ...]:
        if not self.packages:
            packages = program_packages()
            kept = code_store.keep(self.places.code, [file for package in packages for file in _files_of(package)])
            self.packages.extend(kept / package.name for package in packages)
        return tuple(self.packages)

    def _tree(self, mode: Snapshot, folder: Path) -> _Tree:
        if (mode, folder) not in self.trees:
            self.trees[mode, folder] = (
                _copied(folder, self.places)
                if mode is Snapshot.copy
                else _checked_out(folder, self.codes[folder], self.places)
            )
        return self.trees[mode, folder]

    def _imports(self, plan: Plan, tree: _Tree) -> list[str]:
        asked = (plan.argv[0], plan.cwd, id(tree))  # which `trees` keeps
        if asked not in self.imports:
            self.imports[asked] = imported_folders(tree.top, plan.argv[0], Path(plan.cwd))
        return self.imports[asked]


def refuse(planned: Sequence[Planned], places: Places) -> None:
    """Raise `ConfigError` where the code of *planned* cannot be kept, or where runs would share their files unasked.

    Nothing is written. Folders are read only where images may have to be built before the copies are made: otherwise
    making these comes before everything else.
    """
    mode_of = functools.partial(_mode_of, is_whole=functools.cache(is_everything))
    for folder, count in _starting_in(planned, lambda item: item.run.schedule.snapshot is not Snapshot.none, mode_of):
        if count > 1:
            raise ConfigError(
                f"{count} runs would start in {folder} and share what they write there, since no copy is made of it: "
                "cd to the folder of the program (or workload.cwd), or set schedule.snapshot=none"
            )
    _refuse_untracked(planned)
    if any(item.wants_image for item in planned):
        foreseen(planned, places)


def _refuse_untracked(planned: Sequence[Planned]) -> None:
    """Raise `ConfigError` where a command names a file that is here, and that no commit with its changes holds."""
    checked_out = [i for i in planned if i.run.workload.command is not None and i.run.schedule.snapshot is Snapshot.git]
    starts = dict.fromkeys(start_of(item.plan.argv, Path(item.plan.cwd)) for item in checked_out)
    for cwd, word in dict.fromkeys((start.cwd, word) for start in starts for word in start.files):
        # git says nothing where it knows nothing, and fails for what lies outside of the repository
        if os.path.isfile(cwd / word) and git(cwd, "ls-files", "--", word) == b"":  # noqa: PTH113
            raise ConfigError(
                f"schedule.snapshot=git: {word} is not tracked by git and would not be there: git add "
                f"{shlex.quote(word)}, or set schedule.snapshot=copy"
            )


def warnings(planned: Sequence[Planned]) -> Iterator[str]:
    """Yield a line for each folder in which runs would start, or write, as it lies, where that may not be meant.

    And for one of which git tells nothing, or that has submodules without their files.
    """
    mode_of = functools.partial(
        _mode_of, is_whole=functools.cache(is_everything)
    )  # asked once, for thousands of runs in one folder
    for folder, count in _starting_in(planned, lambda item: item.run.schedule.snapshot is Snapshot.none, mode_of):
        if count > 1:
            yield (
                f"schedule.snapshot=none: {count} runs start in {folder} and share what they write there: leave it at "
                "copy to give each run a folder of its own"
            )
    for folder, _ in _starting_in(planned, lambda item: item.run.schedule.snapshot is not Snapshot.none, mode_of):
        yield (
            f"the program starts in {folder} itself, of which no copy is made: cd to the folder of the program (or "
            "workload.cwd) to give each run a copy of its own"
        )
    for folder in dict.fromkeys(item.code_folder for item in planned if item.run.workload.command is not None):
        if (own := top_of(folder)) is not None and (own / ".gitmodules").is_file():
            told = os.fsdecode(git(own, "submodule", "status", "--recursive") or b"").splitlines()
            if absent := [line.split()[1] for line in told if line.startswith("-")]:
                yield (
                    f"{', '.join(absent)}: not checked out, and each run lacks it: git submodule update --init "
                    "--recursive, if the program needs it"
                )
        elif own is None and (top := distrusted_by_git(folder)) is not None:
            yield (
                f"git tells nothing of {top}, which belongs to somebody else: no commit is recorded, and what is code "
                f"is guessed; git config --global --add safe.directory {shlex.quote(top)} says that you trust them"
            )


def _starting_in(
    planned: Sequence[Planned], chosen: Callable[[Planned], bool], mode_of: Callable[[Planned], Snapshot]
) -> list[tuple[Path, int]]:
    """Return the folders, not copied, in which users' programs start, and how many of the *chosen* runs do."""
    first: dict[Path, Planned] = {}
    counts: Counter[Path] = Counter()
    for item in planned:
        if item.run.workload.command is not None and chosen(item):
            first.setdefault(item.code_folder, item)
            counts[item.code_folder] += 1
    return sorted((folder, counts[folder]) for folder, item in first.items() if mode_of(item) is Snapshot.none)


def _mode_of(item: Planned, is_whole: Callable[[Path], bool] = is_everything) -> Snapshot:
    """Return how the code is kept: as asked for, but of a home directory (*is_whole*) nobody wants a copy."""
    mode = item.run.schedule.snapshot
    if mode is Snapshot.copy and item.run.workload.command is not None and is_whole(item.code_folder):
        return Snapshot.none
    return mode


def foreseen(planned: Sequence[Planned], places: Places) -> list[str]:
    """Return a line for each place that the code of *planned* would come from, for ``hpcml run --dry-run``.

    Nothing is written, but folders are read to count their files, so that the errors of a submission (`ConfigError`:
    too large, no commit) are raised here as well.
    """
    lines: dict[str, None] = {}
    for item in planned:
        mode, folder = _mode_of(item), item.code_folder
        if item.run.workload.command is None:
            folder = Path(item.plan.argv[1]).parent
            mode = Snapshot.none if mode is Snapshot.none else Snapshot.copy
            count = None if mode is Snapshot.none else len(_files_of(folder))
            lines[_line(folder, count, places)] = None
        elif mode is Snapshot.git:
            code = describe_code(folder)
            _refuse_git(folder, code)
            changes = f", with the changes of {len(code.diff)} bytes" if code.diff else ""
            lines[f"code: commit {code.commit} of {folder}{changes}, kept in {places.code}; {_OWN}"] = None
        elif mode is Snapshot.none:
            lines[_line(folder, None, places)] = None
        else:
            tree = read_work_tree(folder, places)
            lines |= dict.fromkeys([f"{_line(tree.top, len(tree.files), places)}; {_OWN}", *_decisions(tree)])
    return list(lines)


_OWN = "each run starts in a copy of its own"
_MOST_NAMED = 8  # entries in a line of the dry run


def _decisions(tree: WorkTree) -> Iterator[str]:
    """Yield what becomes of what is not copied as code, a line for each kind."""
    shared = [*tree.shared, *(f"../{name}" for name in beside(tree.top))]
    for what, found in (
        ("shared by all runs (links to your own)", shared),
        ("empty in each run", tree.empty),
        ("left out, as what hpcml keeps in another home", tree.homes),
        ("large, copied for each run", [*tree.copied]),
    ):
        if found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            yield f"code: {what}: {', '.join(found[:_MOST_NAMED])}{more}"


def _line(folder: Path, count: int | None, places: Places) -> str:
    if count is None:
        return f"code: what lies in {folder} when the job starts"
    return f"code: a copy of {count} {one_or_many(count, 'files')} of {folder}, kept in {places.code}"


def _files_of(folder: Path) -> list[File]:
    """Return the files of a recipe or of a package, below the folder's own name; hidden ones are no part of it."""
    files = []
    for place in sorted(folder.rglob("*")):
        inside = place.relative_to(folder)
        if place.is_file() and "__pycache__" not in inside.parts and not any(x.startswith(".") for x in inside.parts):
            path = PurePosixPath(folder.name) / inside
            files.append(File(path=str(path), source=place, is_executable=False, size=place.stat().st_size))
    size_bytes = sum(file.size for file in files)
    if size_bytes > MOST_BYTES:
        raise ConfigError(
            f"the recipe {folder} is too large to be copied for the job: {size_bytes >> 20} MiB of "
            f"{MOST_BYTES >> 20}: keep its data elsewhere (data.path), or set schedule.snapshot=none"
        )
    return files


def _copied(folder: Path, places: Places) -> _Tree:
    tree = read_work_tree(folder, places)
    kept = code_store.keep(places.code, tree.files, tree.links)
    return _Tree(tree.top, kept, empty=tree.empty, copied=tree.copied, shared=tree.shared)


def _refuse_git(folder: Path, code: Code) -> None:
    if code.commit is None:
        raise ConfigError(f"schedule.snapshot=git: {folder} is in no git repository with a commit: set copy or none")
    if code.is_cut:
        raise ConfigError(f"schedule.snapshot=git: the changes in {folder} are too large: commit them, or set copy")


def _checked_out(folder: Path, code: Code, places: Places) -> _Tree:
    """Check out the commit below ``HPCML_HOME/code`` and apply the changes that are recorded as the run's git.diff.

    The folder is named by a hash of both, so that an equal checkout is used again. Raises `ConfigError` for submodules,
    whose files a commit does not hold, and where a call of git fails.
    """
    _refuse_git(folder, code)
    top, commit = top_of(folder), str(code.commit)
    assert top is not None
    listed = git(top, "ls-tree", "-r", "-z", commit) or b""
    if modules := [line.partition(b"\t")[2] for line in listed.split(b"\0") if line.startswith(_SUBMODULE)]:
        raise ConfigError(
            f"schedule.snapshot=git: {os.fsdecode(modules[0])} is a submodule, whose files the commit lacks: set copy"
        )
    digest = hashlib.sha256(b"git\0" + commit.encode() + b"\0" + code.diff).hexdigest()[:16]
    kept = places.code / digest
    if code_store.is_there(kept):
        return _Tree(top, kept)
    try:
        with code_store.new_folder(places.code) as fresh:
            tree, index = fresh / "tree", {"GIT_INDEX_FILE": str(fresh / "index")}
            make_folder(tree)
            # Not `git archive`: it leaves out, and changes, what .gitattributes says of releases
            _must(git(top, "read-tree", commit, environ=index), f"read-tree {commit}")
            done = git(top, f"--work-tree={tree}", "checkout-index", "--all", "--force", environ=index)
            _must(done, "checkout-index")
            if code.diff:  # not as a part of whatever repository HPCML_HOME may lie in
                alone = {"GIT_CEILING_DIRECTORIES": str(fresh), "GIT_DIR": str(fresh / "none")}
                _must(git(tree, "apply", "--binary", "-", environ=alone, given=code.diff), "apply")
            for place in tree.rglob("*"):
                if place.is_file() and not place.is_symlink():
                    place.chmod(0o500 if os.access(place, os.X_OK) else 0o400)
                elif not place.is_symlink():
                    place.chmod(FOLDER)
            return _Tree(top, code_store.put(tree, kept))
    except OSError as error:
        raise ConfigError(f"the code cannot be kept: {why_not(error, places.code)}") from error


def _must(said: bytes | None, what: str) -> None:
    if said is None:
        raise ConfigError(f"schedule.snapshot=git: git {what} failed: set schedule.snapshot=copy or none")


def _profiled(plan: Plan, argv: Sequence[str]) -> list[str]:
    """Return *argv* behind the profiler of *plan*; empty where it has none."""
    profiler = plan.profiled[: -len(plan.argv)] if plan.profiled else []
    return [*profiler, *argv] if profiler else []


def _moved(plan: Plan, tree: _Tree, run_dir: RunDir, imports: Sequence[str] | None) -> Plan:
    """Return *plan* with its working directory, arguments and environment pointing into the run's own copy of the code.

    Paths of which there is no copy (data, anything outside the tree) stay as they are. In variables such as PYTHONPATH
    each part between colons is looked at. *imports* are the folders that come before what is installed; None: as in
    *plan*.
    """
    project = str(run_dir.work / tree.name)
    environment = {
        name: None if value is None else os.pathsep.join(_kept(part, tree, project) for part in value.split(os.pathsep))
        for name, value in plan.environment.items()
    }
    environment.setdefault("GIT_CEILING_DIRECTORIES", str(run_dir.work))  # no repository around the home is the code's
    argv = [_word(word, plan.cwd, tree, project) for word in plan.argv]
    return replace(
        plan,
        argv=argv,
        profiled=_profiled(plan, argv),
        cwd=_below(project, tree.folder(plan.cwd)),
        environment=environment,
        staging=tree.staging,
        python_path=plan.python_path if imports is None else [_kept(path, tree, project) for path in imports],
    )


def _below(project: str, inside: str) -> str:
    return project if inside == os.curdir else f"{project}/{inside}"


def _word(word: str, cwd: str, tree: _Tree, project: str) -> str:
    """Return one argument of the command line with its path, also behind ``--option=``, moved into the copy."""
    option, sign, value = word.partition("=")
    if word.startswith("-") and sign:
        return f"{option}={_word(value, cwd, tree, project)}"
    if word.startswith(".."):  # beside the copy there is nothing of what is beside the tree
        meant = os.path.normpath(Path(cwd) / word)
        return _kept(meant, tree, project) if os.path.lexists(meant) else word
    return _kept(word, tree, project)


def _kept(path: str, tree: _Tree, project: str) -> str:
    """Return where the copy of the absolute *path* lies below *project*; *path* itself where there is none."""
    inside = tree.inside(path) if path.startswith(os.sep) else None
    return path if inside is None else _below(project, inside)
