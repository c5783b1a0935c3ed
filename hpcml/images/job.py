"""``python -m hpcml.images.job ORDER``: builds an image inside a job, for runs with ``container.build=job``.

ORDER is a JSON file that was written at submission.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpcml.codec import decode
from hpcml.errors import HpcmlError
from hpcml.images.build import BuildProgress, build
from hpcml.images.cache import Cache
from hpcml.images.key import Definition
from hpcml.images.packing import Packing
from hpcml.images.runtime import find_builder
from hpcml.paths import begin_in_utf8
from hpcml.runs.run_json import read_own


def main(order: Path) -> int:
    """Build the image of *order*, printing the stages to the job's log; return the exit status."""
    shown = ""

    def show(progress: BuildProgress) -> None:
        nonlocal shown
        if progress.stage != shown:
            print(f"{progress.stage} {progress.words}".rstrip(), flush=True)  # noqa: T201 - the job's log
        shown = progress.stage

    try:
        words = read_own(order)
        definition = decode(Definition, words["definition"])
        assert isinstance(definition, Definition)
        runtime = find_builder(os.environ, words["runtime"], module=words["module"])
        packing = decode(Packing, words.get("packing", {}))
        assert isinstance(packing, Packing)
        cache = Cache(Path(words["images"]))
        record = build(definition, cache, runtime=runtime, environ=os.environ, packing=packing, on_progress=show)
    except HpcmlError as error:
        print(f"hpcml: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    print(f"built {record.key} {record.sha256}")  # noqa: T201
    return 0


if __name__ == "__main__":
    begin_in_utf8()
    sys.exit(main(Path(sys.argv[1])))
