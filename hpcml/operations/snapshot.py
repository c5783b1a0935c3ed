"""The code that a run will execute, kept as it is at submission: edits made while the job waits do not reach it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from hpcml.cluster import SchedulerName
from hpcml.errors import ConfigError
from hpcml.manifest import Plan
from hpcml.operations import code_store, work_tree
from hpcml.operations.code_store import File
from hpcml.operations.plan import Planned
from hpcml.operations.provenance import Code, describe_code
from hpcml.places import Places
from hpcml.resources import client_dir
from hpcml.spec import Snapshot

_SUBMODULE = b"160000 "


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What of a run's code is kept, and the plan that runs it. None: what lies there when the job starts."""

    plan: Plan
    code: Path | None
    client: Path | None


@dataclass(frozen=True, slots=True)
class _Tree:
    top: Path
    kept: Path


def keep_code(places: Places, codes: Mapping[Path, Code]) -> Callable[[Planned], Kept]:
    """Return what keeps the code of a run; equal code is kept once. *codes* is what git says of each folder.

    Raises `ConfigError` where the code cannot be kept as ``schedule.snapshot`` wants it.
    """
    trees: dict[tuple[Snapshot, Path], _Tree | None] = {}
    folders: dict[Path, Path] = {}

    def keep_folder(folder: Path) -> Path:
        if folder not in folders:
            folders[folder] = code_store.keep(places.code, _files_of(folder)) / folder.name
        return folders[folder]

    def keep(item: Planned) -> Kept:
        mode, folder = item.run.schedule.snapshot, item.code_folder
        if mode is Snapshot.none:
            # hpcml's own folders are not seen inside an image
            return Kept(plan=item.plan, code=None, client=keep_folder(client_dir()) if item.wants_image else None)
        if item.run.workload.command is None:
            python, script = item.plan.argv
            recipe = keep_folder(Path(script).parent)
            plan = replace(item.plan, argv=[python, str(recipe / Path(script).name)])
            return Kept(plan=plan, code=recipe.parent, client=keep_folder(client_dir()))
        plan, code = keep_tree(item, mode, folder)
        return Kept(plan=plan, code=code, client=keep_folder(client_dir()))

    def keep_tree(item: Planned, mode: Snapshot, folder: Path) -> tuple[Plan, Path | None]:
        if (mode, folder) not in trees:
            is_copy = mode is Snapshot.copy
            trees[mode, folder] = _copied(folder, places) if is_copy else _checked_out(folder, codes[folder], places)
        tree = trees[mode, folder]
        return (item.plan, None) if tree is None else (_moved(item.plan, tree), tree.kept)

    return keep


def warnings(planned: Sequence[Planned]) -> Iterator[str]:
    """Yield a line for each folder whose code cannot be kept though its runs wait in a queue."""
    waiting = [item for item in planned if item.run.cluster.scheduler is not SchedulerName.local]
    copied = (item for item in waiting if item.run.schedule.snapshot is Snapshot.copy and item.run.workload.command)
    for folder in sorted({item.code_folder for item in copied}):
        if not work_tree.is_kept(folder):
            yield f"git keeps nothing of {folder}: neither does hpcml, and the job runs what lies there when it starts"


def foreseen(planned: Sequence[Planned], places: Places) -> list[str]:
    """Return a line for each place that the code of *planned* would come from; nothing is written."""
    lines: dict[str, None] = {}
    for item in planned:
        mode, folder = item.run.schedule.snapshot, item.code_folder
        if item.run.workload.command is None:
            folder = Path(item.plan.argv[1]).parent
            mode = Snapshot.none if mode is Snapshot.none else Snapshot.copy
            count = None if mode is Snapshot.none else len(_files_of(folder))
            lines[_line(folder, count, places)] = None
        elif mode is Snapshot.git:
            code = describe_code(folder)
            _refuse_git(folder, code)
            changes = f", with the changes of {len(code.diff)} bytes" if code.diff else ""
            lines[f"code: commit {code.commit} of {folder}{changes}, kept in {places.code}"] = None
        else:
            tree = None if mode is Snapshot.none else work_tree.read_work_tree(folder, without=places.home)
            lines[_line(tree.top if tree else folder, len(tree.files) if tree else None, places)] = None
    return list(lines)


def _line(folder: Path, count: int | None, places: Places) -> str:
    if count is None:
        return f"code: what lies in {folder} when the job starts"
    return f"code: a copy of {count} files of {folder}, kept in {places.code}"


def _files_of(folder: Path) -> list[File]:
    """Return the files of a recipe or of hpcml_client, below the folder's own name; hidden ones are no part of it."""
    files = []
    for place in sorted(folder.rglob("*")):
        inside = place.relative_to(folder)
        if place.is_file() and "__pycache__" not in inside.parts and not any(x.startswith(".") for x in inside.parts):
            path = PurePosixPath(folder.name) / inside
            files.append(File(path=str(path), source=place, is_executable=False, size=place.stat().st_size))
    size_bytes = sum(file.size for file in files)
    if size_bytes > work_tree.MOST_BYTES:
        raise ConfigError(
            f"the recipe {folder} is too large to be copied for the job: {size_bytes >> 20} MiB of "
            f"{work_tree.MOST_BYTES >> 20}: keep its data elsewhere (data.path), or set schedule.snapshot=none"
        )
    return files


def _copied(folder: Path, places: Places) -> _Tree | None:
    tree = work_tree.read_work_tree(folder, without=places.home)
    return None if tree is None else _Tree(tree.top, code_store.keep(places.code, tree.files, tree.links))


def _refuse_git(folder: Path, code: Code) -> None:
    if code.commit is None:
        raise ConfigError(f"schedule.snapshot=git: {folder} is in no git repository with a commit: set copy or none")
    if code.is_cut:
        raise ConfigError(f"schedule.snapshot=git: the changes in {folder} are too large: commit them, or set copy")


def _checked_out(folder: Path, code: Code, places: Places) -> _Tree:
    """Keep the commit, and the changes to it that are recorded as the run's git.diff."""
    _refuse_git(folder, code)
    top, commit = work_tree.top_of(folder), str(code.commit)
    assert top is not None
    listed = work_tree.git(top, "ls-tree", "-r", "-z", commit) or b""
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
            tree.mkdir()
            # Not `git archive`: it leaves out, and changes, what .gitattributes says of releases
            _must(work_tree.git(top, "read-tree", commit, environ=index), f"read-tree {commit}")
            done = work_tree.git(top, f"--work-tree={tree}", "checkout-index", "--all", "--force", environ=index)
            _must(done, "checkout-index")
            if code.diff:  # not as a part of whatever repository HPCML_HOME may lie in
                alone = {"GIT_CEILING_DIRECTORIES": str(fresh), "GIT_DIR": str(fresh / "none")}
                _must(work_tree.git(tree, "apply", "--binary", "-", environ=alone, given=code.diff), "apply")
            for place in tree.rglob("*"):
                if place.is_file() and not place.is_symlink():
                    place.chmod(0o555 if os.access(place, os.X_OK) else 0o444)
            return _Tree(top, code_store.put(tree, kept))
    except OSError as error:
        raise ConfigError(f"the code cannot be kept: {error.filename}: {error.strerror}") from error


def _must(said: bytes | None, what: str) -> None:
    if said is None:
        raise ConfigError(f"schedule.snapshot=git: git {what} failed: set schedule.snapshot=copy or none")


def _moved(plan: Plan, tree: _Tree) -> Plan:
    """Return *plan* as it starts in the kept tree, with every path into the tree that was kept."""
    cwd = Path(plan.cwd)
    inside = tree.kept / os.path.relpath(os.path.realpath(cwd), tree.top)
    inside.mkdir(parents=True, exist_ok=True)  # git knows no empty folders
    environment = {
        name: None if value is None else os.pathsep.join(_kept(part, tree) for part in value.split(os.pathsep))
        for name, value in plan.environment.items()
    }
    return replace(plan, cwd=str(inside), argv=[_word(word, cwd, tree) for word in plan.argv], environment=environment)


def _word(word: str, cwd: Path, tree: _Tree) -> str:
    option, sign, value = word.partition("=")
    if word.startswith("-") and sign:
        return f"{option}={_word(value, cwd, tree)}"
    if word.startswith(".."):  # beside the copy there is nothing of what is beside the tree
        meant = os.path.normpath(cwd / word)
        return _kept(meant, tree) if os.path.lexists(meant) else word
    return _kept(word, tree)


def _kept(path: str, tree: _Tree) -> str:
    """Return where the copy of the absolute *path* lies; *path* itself where there is none."""
    if not path.startswith(os.sep):
        return path
    place = Path(os.path.realpath(Path(path).parent)) / Path(path).name
    if not place.is_relative_to(tree.top):
        return path
    copy = tree.kept / place.relative_to(tree.top)
    is_kept = copy.exists() and Path(os.path.realpath(copy)).is_relative_to(os.path.realpath(tree.kept))
    return str(copy) if is_kept else path
