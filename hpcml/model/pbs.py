"""What PBS sites differ in, as keys of their profiles, and what a run may ask of PBS beyond Slurm's words.

The names are PBS's own (man pbs_resources): a chunk is what ``-l select=`` has for each node; ``-l NAME=VALUE`` is of
the whole job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields

from hpcml.errors import require

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_VALUE = re.compile(r"[^\s:=+'\"\\]+")  # of a resource in a chunk
_WHOLE_VALUE = re.compile(r"[A-Za-z0-9_./:=+@%^\[\]-]+")  # of a resource of the job: home:eagle, gdata/a+scratch/b
_CHUNK = re.compile(r"\d+(:[A-Za-z_]\w*=[^\s:=+'\"\\]+)+")
_PLACE = re.compile(
    r"(free|pack|scatter|vscatter)(:(excl|exclhost|shared))?(:group=\w+)?|group=\w+|excl|exclhost|shared"
)
_ACCOUNTS = {"-A": ("-A", ""), "-P": ("-P", ""), "group_list": ("-W", "group_list=")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsSite:
    """How a PBS site wants its jobs said; the defaults are PBS's own ways.

    Values of *chunk* are templates as those of `Cluster`. Raises `ConfigError` for names and values that PBS could not
    take, and for an unknown account option.
    """

    has_select: bool = True  # False: totals of all nodes, -l ncpus= -l ngpus= -l mem=
    says_cores: bool = True  # False: a node is given whole, and a request names no ncpus
    exact_cores: bool = False  # ncpus must be cores_per_gpu for each GPU, no more and no less
    account: str = "-A"  # -A | -P | group_list (of -W)
    chunk: dict[str, str] = field(default_factory=dict)  # of every chunk, in this order: system: polaris
    place: str | None = None  # where resources.pbs.place says nothing: scatter, scatter:excl
    says_ranks: bool = False  # every chunk names mpiprocs and ompthreads

    def __post_init__(self) -> None:
        require(self.account in _ACCOUNTS, f"cluster.pbs.account={self.account}: choose {', '.join(_ACCOUNTS)}")
        _check_names("cluster.pbs.chunk", self.chunk)
        _check_place("cluster.pbs.place", self.place)

    def account_option(self, account: str) -> tuple[str, str]:
        """Return the option of qsub that names *account*, and its value.

        >>> PbsSite(account="group_list").account_option("s1234")
        ('-W', 'group_list=s1234')
        """
        flag, before = _ACCOUNTS[self.account]
        return flag, before + account


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsRequest:
    """What a run asks of PBS besides `Resources`; None and empty: not said.

    Raises `ConfigError` for values that would add to the request, or that PBS has no word for.
    """

    mpiprocs: int | None = None  # of each chunk: lines of the node file, which MPI counts as slots
    ompthreads: int | None = None  # of each chunk: OMP_NUM_THREADS, unless resources.cpus_per_task says it
    place: str | None = None  # free | pack | scatter | vscatter, :excl | :exclhost | :shared, group=RESOURCE
    filesystems: str | None = None  # that the job needs, as home:eagle
    chunks: list[str] = field(default_factory=list)  # further kinds of nodes: 1:ncpus=8:model=mil
    options: dict[str, str] = field(default_factory=dict)  # -l NAME=VALUE: job_priority, storage, jobfs

    def __post_init__(self) -> None:
        for name in ("mpiprocs", "ompthreads"):
            count = getattr(self, name)
            require(count is None or count >= 1, f"resources.pbs.{name}={count} must be at least 1")
        _check_place("resources.pbs.place", self.place)
        for chunk in self.chunks:
            require(
                _CHUNK.fullmatch(chunk) is not None,
                f"resources.pbs.chunks: {chunk!r} is no chunk: write COUNT:NAME=VALUE:..., as 2:ncpus=8:mem=16gb",
            )
        _check_names("resources.pbs.options", self.options)
        for name, value in self.whole_job().items():
            require(
                _WHOLE_VALUE.fullmatch(value) is not None,
                f"resources.pbs: {name}={value!r}: use letters, digits and . _ / : = + @ % ^ [ ] -",
            )

    def whole_job(self) -> dict[str, str]:
        """Return the resources of the whole job, by name."""
        named = {} if self.filesystems is None else {"filesystems": self.filesystems}
        return {**named, **self.options}

    def said(self) -> list[str]:
        """Return the names of what was asked for."""
        return [one.name for one in fields(self) if getattr(self, one.name) not in (None, [], {})]


def _check_names(where: str, words: dict[str, str]) -> None:
    for name, value in words.items():
        require(_NAME.fullmatch(name) is not None, f"{where}: {name!r} is no name of a resource")
        require(
            where != "cluster.pbs.chunk" or _VALUE.fullmatch(value) is not None,
            f"{where}.{name}={value!r}: a value in a chunk has no blanks, quotes, colons, = or +",
        )


def _check_place(where: str, place: str | None) -> None:
    require(
        place is None or _PLACE.fullmatch(place) is not None,
        f"{where}={place}: choose free, pack, scatter or vscatter, with :excl, :exclhost or :shared, or group=RESOURCE",
    )
