"""``python -m hpcml.images.job ORDER``: the image that was written down at submission, built inside a job."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hpcml.codec import decode
from hpcml.errors import HpcmlError
from hpcml.image import Definition
from hpcml.images.build import Progress, build
from hpcml.images.cache import Cache
from hpcml.images.runtime import find_runtime


def main(order: Path) -> int:
    """Build, and print the stages; return the exit status."""
    shown = ""

    def show(progress: Progress) -> None:
        nonlocal shown
        if progress.stage != shown:
            print(f"{progress.stage} {progress.words}".rstrip(), flush=True)  # noqa: T201 - the job's log
        shown = progress.stage

    words = json.loads(order.read_text(encoding="utf-8"))
    definition = decode(Definition, words["definition"])
    assert isinstance(definition, Definition)
    try:
        runtime = find_runtime(os.environ, words["runtime"], module=words["module"])
        record = build(definition, Cache(Path(words["images"])), runtime=runtime, environ=os.environ, on_progress=show)
    except HpcmlError as error:
        print(f"hpcml: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    print(f"built {record.key} {record.sha256}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
