"""Which directory counts where several say that they are the same run: always the same, whichever was found first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcml.errors import HpcmlError


def takes_over(now: Path, before: Path, uid: str, roots: Sequence[Path]) -> bool:
    """Tell whether run *uid*, which the store found in *before*, is to be read anew from its other directory *now*.

    Of two that exist the one below the earlier of *roots* counts, then one that has the place that runs are given,
    then the older. A directory that does not count raises `HpcmlError`; one that merely moved takes nothing over.
    """
    if now == before or not _exists(before / "run.json") or before.samefile(now):
        return False
    if _standing(now, uid, roots) < _standing(before, uid, roots):
        return True
    raise HpcmlError(f"{now} and {before} both say that they are run {uid}, and the latter counts: remove the copy")


def _standing(path: Path, uid: str, roots: Sequence[Path]) -> tuple[int, bool, int, str]:
    root = next((at for at, root in enumerate(roots) if path.is_relative_to(root)), len(roots))
    written_ns = (path / "run.json").stat().st_mtime_ns
    return (root, path.name != uid, written_ns, str(path))


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # not for us to see, which is no proof that it is gone
    return True
