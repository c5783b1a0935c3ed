"""How an image is packed: the compression of its squashfs, and how many processors the builder may use.

Apptainer packs with gzip unless ``--mksquashfs-args`` says otherwise, which it has since 1.4
(apptainer/apptainer#2707). Without it, the site's configuration alone limits mksquashfs. So the program is asked for
its options, and what can be done is decided before a build begins.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from spython.utils import run_command

from hpcml.errors import ImageError
from hpcml.images.runtime import Runtime
from hpcml.model.container import Compression
from hpcml.model.image import without_login

_OPTION = "--mksquashfs-args"
# Level 3 of zstd: a twentieth of the processor time of gzip, and 3 % larger (numpy's folder, mksquashfs 4.5.1).
_WORDS = {
    Compression.gzip: ("-comp", "gzip"),
    Compression.zstd: ("-comp", "zstd", "-Xcompression-level", "3"),
    Compression.lz4: ("-comp", "lz4"),
    Compression.xz: ("-comp", "xz"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What is asked for; *processors* None are all that this process may use."""

    compression: Compression = Compression.auto
    processors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What will be done: options of the build command, and what a user should know of it."""

    options: tuple[str, ...] = ()
    compression: str | None  # None: the user's own words decide
    note: str


def decide(packing: Packing, runtime: Runtime, environ: Mapping[str, str]) -> Decided:
    """Return how an image will be packed.

    `auto` is zstd where the runtime can be told so, else gzip. What the user has set in APPTAINER_MKSQUASHFS_ARGS stays
    as it is. Raises `ImageError` for a compression that was asked for and cannot be had.
    """
    variables = ("APPTAINER_MKSQUASHFS_ARGS", "SINGULARITY_MKSQUASHFS_ARGS")
    own = next((environ[name] for name in variables if environ.get(name)), None)
    if own is not None:
        return Decided(compression=None, note=f"packed with {own}, as APPTAINER_MKSQUASHFS_ARGS says")
    wanted = packing.compression
    answer = run_command([runtime.path, "build", "--help"], quiet=True, environ=without_login(environ))
    if _OPTION not in "".join(answer["message"]):
        without = f"{runtime} has no option {_OPTION} (Apptainer 1.4 has)"
        if wanted not in (Compression.auto, Compression.gzip):
            raise ImageError(f"container.compression={wanted.name}: {without}: set gzip, or auto")
        return Decided(compression="gzip", note=f"packed with gzip: {without}")
    chosen = Compression.zstd if wanted is Compression.auto else wanted
    limit = ("-processors", str(packing.processors)) if packing.processors is not None else ()
    options = (_OPTION, shlex.join([*_WORDS[chosen], *limit]))
    return Decided(options=options, compression=chosen.name, note=f"packed with {chosen.name}")


def processors_on(*, is_login_node: bool, chosen: int | None, environ: Mapping[str, str]) -> int | None:
    """Return how many processors a build may use; None: all that this process may.

    On a login node, which others use as well, they are four unless more were *chosen*. A node of a job is none.
    """
    inside_a_job = any(environ.get(name) for name in _IN_A_JOB)
    if chosen is None and (inside_a_job or not is_login_node):
        return None
    return min(chosen or _ON_LOGIN_NODES, len(os.sched_getaffinity(0)))


_ON_LOGIN_NODES = 4
_IN_A_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "HPCML_JOB_ID")
