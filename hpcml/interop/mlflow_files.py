"""MLflow's folder of files, mended where a process died while MLflow was writing there."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hpcml.errors import HpcmlError

_PATIENCE_S = 5.0  # after which whoever was writing a description of some lines is dead


def mend(uri: str, experiment_id: str, tag: str) -> None:
    """Remove what is left of runs whose description is empty: MLflow refuses a whole experiment because of one.

    Only runs that have *tag*, which their exporter will create again, or nothing at all. Raises `HpcmlError` for any
    other. A tracking server or a database writes whole or not at all: nothing is done there.
    """
    folder = _folder(uri)
    if folder is None:
        return
    for description in sorted((folder / experiment_id).glob("*/meta.yaml")):
        if not _stays_empty(description):
            continue
        run = description.parent
        if not (run / "tags" / tag).is_file() and any(path.is_file() for path in run.rglob("*") if path != description):
            raise HpcmlError(f"MLflow's run {run} has an empty meta.yaml, and is not hpcml's: remove it or restore it")
        shutil.rmtree(run)


def _folder(uri: str) -> Path | None:
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else uri)


def _stays_empty(path: Path) -> bool:
    try:
        while (found := path.stat()).st_size == 0:
            if time.time() - found.st_mtime > _PATIENCE_S:
                return True
            time.sleep(0.1)
    except FileNotFoundError:
        pass  # removed meanwhile
    return False
