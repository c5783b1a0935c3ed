"""The layout of a run directory: the path of every file in it, but not what the files contain.

A run directory is ``<root>/<experiment>/<uid>``; docs/run-directory.md describes it for users. Also here: how ids of
runs are made (`new_uid`), and how run directories are found on disk (`find_run_dirs`).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_UID_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0/o, 1/i/l: these are read aloud and typed; in sorting order
_ORDER_DIGITS = 3
_PLACES_A_SECOND = len(_UID_ALPHABET) ** _ORDER_DIGITS  # a place is 34 us, in which no run is submitted
_CHANCE_DIGITS = 5
_PLACES = range(_CHANCE_DIGITS)
_UID = re.compile(rf"\d{{8}}-\d{{6}}-[{_UID_ALPHABET}]{{1,20}}")
NEWEST = re.compile(r"@(-?)([1-9]\d{0,8})")  # in place of an id: @1 the newest run, @-1 the last submission
REMOVED = ".removed-"  # before the name of a run that is being removed
QUEUE_LOG = "queue.log"  # in a run's directory: what its agents print below the queue of this machine
_BY_ATTEMPT = re.compile(r"(\d+)-.*\.jsonl")
_BY_RANK = re.compile(r"-rank\d+(-\d+)?\.jsonl$")
_NO_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM})
_BY_USER = re.compile(r"-user(-\d+)?\.jsonl$")


def new_uid(now: datetime, index: int) -> str:
    """Return a new run id, such as ``20250131-120000-f2a7k9mx``: time, place within the second, random characters.

    *now* is when the submission began, *index* counts its runs, each of which has the next place: so ids sort by time,
    within the same second too, and within a submission by *index*. They are unique among all submitters. The time in
    the id of a late run of a submission may be a second later than *now*. It is in UTC: a local time comes twice when
    summer ends, and hosts may differ in it.
    """
    seconds, place = divmod(now.microsecond * _PLACES_A_SECOND // 1_000_000 + index, _PLACES_A_SECOND)
    order = ""
    for _ in range(_ORDER_DIGITS):
        place, digit = divmod(place, len(_UID_ALPHABET))
        order = _UID_ALPHABET[digit] + order
    return f"{now.astimezone(UTC) + timedelta(seconds=seconds):%Y%m%d-%H%M%S}-{order}{_chance()}"


def new_submission_id(now: datetime) -> str:
    """Return a new id for runs that are submitted together: like a run's id, without the position."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{_chance()}"


def _chance() -> str:
    drawn = secrets.randbelow(len(_UID_ALPHABET) ** _CHANCE_DIGITS)  # at once: each call asks the kernel
    return "".join(_UID_ALPHABET[drawn // len(_UID_ALPHABET) ** place % len(_UID_ALPHABET)] for place in _PLACES)


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of the run in *path*, which is ``<root>/<experiment>/<uid>``; they need not exist."""

    path: Path

    @property
    def uid(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def manifest(self) -> Path:
        """run.json: the whole specification and its origin; written once, before submission."""
        return self.path / "run.json"

    @property
    def git_diff(self) -> Path:
        """The changes of the working tree that were not committed at submission."""
        return self.path / "git.diff"

    @property
    def call(self) -> Path:
        """The call of a function, pickled by submitit; absent where the program is no function."""
        return self.path / "call.pkl"

    @property
    def result(self) -> Path:
        """What the function returned, or its traceback, pickled as submitit does; absent before its end."""
        return self.path / "result.pkl"

    @property
    def image_record(self) -> Path:
        """What was recorded of the run's image: its definition, base and packages; it stays when the image goes."""
        return self.path / "image.json"

    @property
    def script(self) -> Path:
        """The job script, which starts the agent; it may be submitted again by hand."""
        return self.path / "job.sh"

    @property
    def code(self) -> Path:
        """A link to the snapshot of the user's code that the run executes; absent where none was taken."""
        return self.path / "code"

    @property
    def work(self) -> Path:
        """The working directory of a program of the user's own, the same in all attempts; absent for recipes."""
        return self.path / "work"

    @property
    def staged(self) -> Path:
        """Which files of `work` were put there before the program started; absent until all of them are."""
        return self.path / "staged.json"

    def is_staged(self, attempt: int) -> Path:
        """A file that the first node makes once `work` is ready for *attempt*; the others wait for it."""
        return self.path / "attempts" / f"{attempt}.staged"

    def has_left_work(self, attempt: int, node: int) -> Path:
        """A file that says that no program of *node* uses `work` in *attempt* any more."""
        return self.path / "attempts" / f"{attempt}.left{node}"

    def has_failed(self, attempt: int) -> Path:
        """A file that says how a node's part of *attempt* failed, in a job in which other runs still wait."""
        return self.path / "attempts" / f"{attempt}.failed"

    def mpi(self, attempt: int) -> Path:
        """The folder in which ranks that a launcher started say who they are and how they ended in *attempt*."""
        return self.path / "attempts" / f"{attempt}.mpi"

    def retry_manifest(self, number: int) -> Path:
        """The manifest that retry *number* (from 1) reads instead of run.json, since it has other resources."""
        return self.path / "retries" / f"{number}.json"

    def retry_script(self, number: int) -> Path:
        """The job script of retry *number*."""
        return self.path / "retries" / f"{number}.sh"

    @property
    def journals(self) -> Path:
        """The folder of the journals, one file per writer and attempt."""
        return self.path / "journal"

    @property
    def telemetry(self) -> Path:
        """The folder of the samplers' journals, one per node and attempt: only what was measured beside the program."""
        return self.path / "telemetry"

    def claim(self, attempt: int) -> Path:
        """The file that says which job carries out attempt *attempt*; whoever creates it has the attempt."""
        return self.path / "attempts" / f"{attempt}.json"

    def claims(self) -> list[tuple[int, Path]]:
        """All attempts that were claimed, by number, with their files."""
        found = (self.path / "attempts").glob("*.json")
        return sorted((int(path.stem), path) for path in found if path.stem.isdecimal())

    @property
    def client_path(self) -> Path:
        """The folder on the workload's PYTHONPATH, or a link to it; it holds only `hpcml_client` and `hpcml_train`."""
        return self.path / "pythonpath"

    def python_path(self, *, is_observed: bool) -> list[str]:
        """Return the folders that come first on the workload's PYTHONPATH.

        With *is_observed* the first has the sitecustomize by which torch is observed in a program that does not ask.
        """
        injected = self.client_path / "hpcml_train" / "injected"
        return [*([str(injected)] if is_observed else []), str(self.client_path)]

    @property
    def checkpoints(self) -> Path:
        """The folder where the workload may write its checkpoints."""
        return self.path / "checkpoints"

    @property
    def cancel_mark(self) -> Path:
        """A file that exists once `hpcml cancel` was called for this run; the agent looks for it."""
        return self.path / "cancel"

    @property
    def logs(self) -> Path:
        """The folder of everything that was printed."""
        return self.path / "logs"

    def profile(self, attempt: int, rank: int) -> Path:
        """What a profiler writes of a process, without the end of its name, which each profiler adds."""
        return self.path / "profile" / f"{attempt}-rank{rank}"

    def stdout(self, attempt: int, rank: int) -> Path:
        """The standard output of rank *rank* in attempt *attempt*."""
        return self.logs / f"{attempt}-rank{rank}.out"

    def stderr(self, attempt: int, rank: int) -> Path:
        """The standard error of rank *rank* in attempt *attempt*."""
        return self.logs / f"{attempt}-rank{rank}.err"

    def launcher_log(self, attempt: int) -> Path:
        """What the launcher of an MPI program (srun, mpirun) printed itself in attempt *attempt*."""
        return self.logs / f"{attempt}-launcher.log"

    def agent_log(self, attempt: int, node: int = 0) -> Path:
        """The log of the agent of node *node*: empty unless something unusual happened."""
        return self.logs / f"{attempt}-agent{node or ''}.log"

    def agent_logs(self) -> list[Path]:
        """The logs of the agents of all attempts, which these touch as a sign of life; [] before the first."""
        return list(self.logs.glob("*-agent*.log"))

    @property
    def being_removed(self) -> Path:
        """The path to which the run is moved while it is removed: a hidden name in the same folder."""
        return self.path.with_name(f"{REMOVED}{self.path.name}")

    def journal_files(self) -> list[Path]:
        """All existing journals, sorted by name; names begin with the attempt. What is no regular file is none."""
        folder = self.journals
        return [folder / name for name in journal_names(str(folder))]


def journal_names(folder: str) -> list[str]:
    """Return the names of the `journal_files` in *folder*, for who asks of many runs: a `Path` of each would cost most.

    [] where the folder is absent or not ours.
    """
    try:
        with os.scandir(folder) as entries:  # glob() takes three times as long, and this is asked of each run
            return sorted(each.name for each in entries if each.name.endswith(".jsonl") and _may_be_file(each))
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        return []


def _may_be_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False) or stat.S_ISREG(entry.stat().st_mode)
    except FileNotFoundError:
        return not entry.is_symlink()  # gone at this moment: who opens it will see; but not a link to nothing
    except OSError:
        return False  # a link to itself, say


def run_dir_of(manifest: Path) -> RunDir:
    """Return the run that *manifest*, a run.json or the manifest of a retry, belongs to."""
    return RunDir(manifest.parent.parent if manifest.parent.name == "retries" else manifest.parent)


def home_of(path: Path) -> Path:
    """Return the home that *path* lies in, by its place: a file of a run, of a batch of runs, or of what a job builds.

    That is HOME of HOME/runs/EXPERIMENT/UID/..., HOME/submissions/TOKEN/FILE or HOME/builds/FILE. Of anything else, as
    a run directory that lies by itself, it is the run's own folder.
    """
    run = run_dir_of(path).path
    if len(run.parents) > 2 and run.parents[1].name == "runs":
        return run.parents[2]
    for above in (path.parent, path.parent.parent):
        if above.name in ("submissions", "builds"):
            return above.parent
    return run


def queues_of(submissions: Path) -> Path:
    """Return the folder of the batches of *submissions* that wait or run on this machine, or another that sees it."""
    return submissions / "queues"


def attempt_of(journal: str) -> int | None:
    """Return the number of the attempt that the journal of this name belongs to; None where the name has none."""
    match = _BY_ATTEMPT.fullmatch(journal)
    return None if match is None else int(match[1])


def is_by_rank(journal: str) -> bool:
    """Tell whether the journal of this name is that of a rank: it may be large, and says nothing of the run's state."""
    return _BY_RANK.search(journal) is not None


def is_by_user(journal: str) -> bool:
    """Tell whether the journal of this name holds notes and tags of users, which say nothing of the run's progress."""
    return _BY_USER.search(journal) is not None


def find_run_dirs(root: Path, *, depth: int = 2) -> Iterator[RunDir]:
    """Yield every run at most *depth* folders below *root*, oldest first within an experiment.

    *root* itself may be a run. A folder with journals whose run.json is gone or cannot be reached is one, too: whoever
    reads it says so. Hidden folders are skipped, and with them runs that are being removed. Raises `OSError` as
    `folders_in` does.
    """
    for path in run_paths(str(root), depth=depth):
        yield RunDir(Path(path))


def run_paths(folder: str, *, depth: int = 2) -> Iterator[str]:
    """Yield the paths of the same runs as texts: for each run before each answer, where a `Path` would cost most."""
    if is_run(folder):
        yield folder
    elif depth > 1:
        for inner in folders_in(folder):
            yield from run_paths(inner, depth=depth - 1)
    elif depth > 0:
        yield from filter(is_run, folders_in(folder))


def folders_in(folder: str) -> list[str]:
    """Return the paths of the folders in *folder* in which runs may lie, sorted; [] where it is gone or not ours.

    Raises `OSError` where the file system does not tell: nobody may take what it has not listed for gone.
    """
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _may_be_folder(entry))
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        return []
    return [f"{folder}/{name}" for name in names]


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        return False  # a link to itself, or to where we may not look


def is_run(folder: str) -> bool:
    """Tell whether *folder* is a run directory: it has a run.json, or journals without one."""
    try:
        os.lstat(f"{folder}/run.json")
    except PermissionError:
        return _UID.fullmatch(folder.rpartition("/")[2]) is not None  # another user's, by its name
    except OSError as error:
        is_told = error.errno in _NO_FOLDER
        return _has_journals(folder) or (not is_told and _UID.fullmatch(folder.rpartition("/")[2]) is not None)
    return True


def is_removed(folder: str) -> bool:
    """Tell whether a run whose directory *folder* was has been removed; False where the file system does not say.

    Without the folder of all runs, two above, it does not: that may be a disk which is not mounted.
    """
    return is_gone(folder) and os.path.isdir(folder_of_all(folder))  # noqa: PTH112 - asked of each run, often


def folder_of_all(folder: str) -> str:
    """Return the folder of all runs in which the run *folder* lies."""
    return folder.rpartition("/")[0].rpartition("/")[0] or "/"


def is_gone(folder: str) -> bool:
    """Tell whether nothing is seen of a run in *folder*; False where the file system does not say."""
    try:
        os.lstat(f"{folder}/run.json")
    except (FileNotFoundError, NotADirectoryError):
        return not is_run(folder)
    except OSError:
        return False
    return False


def _has_journals(folder: str) -> bool:
    try:
        with os.scandir(f"{folder}/journal") as entries:
            return any(entry.name.endswith(".jsonl") for entry in entries)
    except OSError:
        return False


def program_packages() -> tuple[Path, ...]:
    """Return the packages (hpcml_client, hpcml_train) that a workload must be able to import wherever it runs."""
    root = Path(__file__).resolve().parents[2]
    return tuple(root / name for name in ("hpcml_client", "hpcml_train"))
