"""What the agent does for a run on its node, as it was decided at submission: `Plan`, a part of run.json."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcml.model.choices import Numerics

# Runtimes that know no prefix of their own for variables inside: each goes in as PREFIX + name, a shell inside renames
# it, and all names are in one variable. hpcml/agent/ranks sets them.
INSIDE_PREFIX, INSIDE_NAMES = "HPCMLENV_", "HPCML_INSIDE"
# What a program finds of the run that it is in; nothing of it is for what that program submits.
OF_THE_RUN = frozenset({"HPCML_RUN_ID", "HPCML_RUN_DIR", "HPCML_CONFIG", "HPCML_ATTEMPT", "HPCML_CLUSTER"})
_MARGIN_S = 60  # before the end of the walltime


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The container image of a run, as it was known at submission."""

    path: str
    sha256: str | None = None  # None: of a folder, or not built yet
    size_bytes: int | None = None  # with the time: whether it is still the file whose SHA-256 that is
    mtime_ns: int | None = None
    key: str | None = None  # in the cache of images; None: one of the user's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """What a run's own working directory is made of when its job starts (`hpcml.runs.working_directory`).

    `project` is the folder in it that stands for the user's; all other places are relative to the working directory.
    """

    code: str  # the copy of the code, of which each run gets a copy
    project: str
    empty: list[str] = field(default_factory=list)  # folders of outputs, which begin empty
    shared: dict[str, str] = field(default_factory=dict)  # data and environments: a link to where they lie
    original: str | None = None  # the user's folder of which the project is a copy; None: a plan of an older version


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiStart:
    """How the ranks of all nodes are started as one MPI job, in place of the agents' starting those of their nodes."""

    launcher: str  # srun | mpirun | mpiexec | pbsdsh; none: the program is one
    pmi: str | None = None  # what srun is told by --mpi; None: nothing, so the site's default holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the agent does on the node: everything is decided, no default is applied there. Times are in seconds."""

    numerics: Numerics  # native or emulated
    device: str  # cpu | cuda
    argv: list[str]
    environment: dict[str, str | None]  # on top of the agent's own; None: must not be set
    cwd: str
    processes_per_node: int
    gpus_per_node: int
    cpus_per_task: int | None
    walltime_s: int | None  # what the scheduler is asked for
    stop_after_s: int | None  # when the agent ends the workload: before the scheduler would end both
    stop_grace_s: int
    warn_after_s: int | None = None  # when the workload is asked for a checkpoint; None: only after a signal
    image: Image | None = None  # what argv starts the program in; None: the environment that hpcml itself runs in
    program_words: int = 0  # the last ones of argv, which are not of what starts the image; 0: all
    env_prefixes: list[str] = field(default_factory=list)  # put before names of variables for inside the image
    passed_on: list[str] = field(default_factory=list)  # patterns of the agent's variables that go inside: SLURM_*
    runtime_environment: dict[str, str] = field(default_factory=dict)  # of what starts the image
    part_size: int | None = None  # of recipes that train: samples that one process computes at once
    stages: int | None = None  # that the strategy cuts the model into
    dependency: str | None = None  # resources.dependency with jobs in place of runs; None: as that says, "": met
    staging: Staging | None = None  # of the run's own working directory, in which `cwd` lies; None: `cwd` is as it is
    python_path: list[str] = field(default_factory=list)  # comes before what is installed: the program's own packages
    profiled: list[str] = field(default_factory=list)  # in place of argv, of the processes that a profiler starts
    mpi: MpiStart | None = None  # None: the agent of each node starts its ranks itself

    @property
    def program(self) -> list[str]:
        """The command line of the program itself, without what starts the image that it is in."""
        return self.argv[-self.program_words :]


def stop_and_warn_after_s(walltime_s: int, *, grace_s: int, notice_s: int, is_alone: bool = True) -> tuple[int, int]:
    """Return when the agent stops a program of a job with this walltime, and when it asks for a checkpoint.

    In seconds. What the agent keeps (`kept_of_walltime_s`) is never more than half of it, and nothing where the
    walltime is not that of the job (*is_alone* False). The warning is *notice_s* earlier.
    """
    stop_after_s = walltime_s - min(kept_of_walltime_s(grace_s) if is_alone else 0, walltime_s // 2)
    return stop_after_s, stop_after_s - min(notice_s, stop_after_s // 2)


def kept_of_walltime_s(grace_s: int) -> int:
    """Return what an agent keeps of a job's walltime, to end the program and write the outcome down before it is over.

    It is a minute, or the program's *grace_s* and half a minute.
    """
    return max(_MARGIN_S, grace_s + _MARGIN_S // 2)
