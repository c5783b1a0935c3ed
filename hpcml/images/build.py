"""Builds one image: once for all processes that want it, invisible until complete, with nothing left over on failure.

`build` takes the lock of the image, checks the room on the disk, runs Apptainer or Singularity, checks the result and
moves it into the cache. `hpcml build`, submissions and build jobs use it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO

from hpcml.errors import ImageError
from hpcml.images.cache import Cache, remove_tree, scratch_name, sha256_of
from hpcml.images.definition import require_unchanged
from hpcml.images.failures import IMAGES, NOISE, explain, explain_os, more_room, with_log
from hpcml.images.guard import await_end, guarded
from hpcml.images.key import Definition
from hpcml.images.logins import login_for
from hpcml.images.packing import Packing, decide
from hpcml.images.runtime import (
    Runtime,
    build_command,
    build_environment,
    chosen_place,
    chosen_places,
    inspect_definition,
    installed_packages,
    secrets_in,
)
from hpcml.images.sections import last_stage, pieces_of, section_name
from hpcml.model.failure_causes import without_colours
from hpcml.model.image import ImageRecord
from hpcml.runs import lock as locks
from hpcml.runs.atomic import draft_of
from hpcml.runs.private import is_ours, make_folder, make_home, open_file, user_name

_KEPT_LINES = 2000
# What Apptainer says of the index of its downloaded layers if a build was killed while it wrote that (seen with 1.4.5)
_TORN = "unexpected end of JSON input"
_ROOM = 5  # layers, unpacked, and packed again: 3 to 5 times what is downloaded
_LEAST_ROOM = 32 << 20
_STAGES = (
    ("Fetching OCI image", "downloading"),
    ("Extracting OCI image", "unpacking"),
    ("Running post scriptlet", "installing"),
    ("Creating SIF file", "packing"),
    ("Build complete", "checking"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """The stage that a build has reached, and its latest line of output.

    The stages come in the order of the comment below; a stage that a build does not need is skipped. Passwords and keys
    in the line are replaced by ``***``.
    """

    stage: str  # waiting | preparing | downloading | unpacking | installing | packing | checking
    words: str = ""  # the latest line


OnProgress = Callable[[BuildProgress], None]


def build(
    definition: Definition,
    cache: Cache,
    *,
    runtime: Runtime,
    environ: Mapping[str, str],
    packing: Packing | None = None,
    on_progress: OnProgress = lambda _: None,
    wait: bool = True,
    patience: locks.Patience | None = None,
) -> ImageRecord:
    """Return the image of *definition*, from the cache or built now; of several processes that ask, one builds.

    *on_progress* is called for each line of output, and about once a second while another process builds. With *wait*
    False, a build by another process raises `ImageError` instead of waiting. *environ* has the logins of registries and
    the folders that the user has chosen for temporary files and layers. *packing* says how it is packed (default: as
    `Packing`). *patience* has the times of the lock.

    Raises `ImageError`, with the reason in one line, where the build fails; then only the log of the build and the
    downloaded layers are left in the cache. In the main thread SIGTERM and SIGHUP clean up in the same way, and then
    raise `SystemExit`.
    """
    patience = patience or locks.Patience()
    found = cache.find(definition.key)
    if found is not None:
        return found
    packing, written = packing or Packing(), {cache.root: IMAGES, **chosen_places(environ)}
    _check_place(cache)
    held = _await_lock(definition, cache, on_progress, patience, wait=wait)
    with locks.kept_alive(held, patience), _signals_clean_up():
        found = cache.find(definition.key)  # by the one we waited for
        if found is not None:
            return found
        chosen = chosen_place(environ, "TMPDIR")
        locks.clear_dead(cache.locks)
        _clear(cache.leftovers(Path(chosen) if chosen else None), on_progress)
        _check_room(definition, written)
        began = time.monotonic()
        work = _Work(
            definition=definition,
            cache=cache,
            runtime=runtime,
            environ=environ,
            processors=packing.processors,
            folder=cache.building(definition.key),
            written=written,
        )
        with work.prepared():
            decided = decide(packing, runtime, environ)
            image = work.make(decided.options, on_progress, first_words=f"hpcml: {runtime}, {decided.note}")
            record = _describe(definition, image, runtime, environ, time.monotonic() - began)
            record = replace(record, compression=decided.compression)
            if not held.is_ours:
                raise ImageError(
                    f"image {definition.key[:12]}: another builder took us for dead (did this host sleep?): build again"
                )
            return cache.adopt(image, record, work.log)


def _clear(left: Iterable[Path], on_progress: OnProgress) -> None:
    """Remove what builds that died have left, once nothing works there any more."""
    cleaning = BuildProgress(stage="waiting", words="a build that was killed is cleaning up")
    for path in left:
        await_end(path, on_wait=lambda: on_progress(cleaning))
        remove_tree(path)
    on_progress(BuildProgress(stage="preparing"))


def _await_lock(
    definition: Definition, cache: Cache, on_progress: OnProgress, patience: locks.Patience, *, wait: bool
) -> locks.Lock:
    """Return the lock of the image as soon as it is free; without *wait*, raise `ImageError` where it is not."""
    try:
        for found in locks.wait_for(cache.locks, definition.key, patience=patience):
            if isinstance(found, locks.Lock):
                return found
            if not wait:
                raise ImageError(f"image {definition.key[:12]} is being built by {found}: try again later")
            on_progress(BuildProgress(stage="waiting", words=f"{found} builds it"))
    except OSError as error:
        raise explain_os(error, {cache.root: IMAGES}) from error
    raise AssertionError("a lock that is waited for comes")


@contextmanager
def _signals_clean_up() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, as a job or a login session gets them, end us as Ctrl-C does: after cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One build in its own *folder*; *written* is as `explain` has it."""

    definition: Definition
    cache: Cache
    runtime: Runtime
    environ: Mapping[str, str]
    processors: int | None
    folder: Path
    written: Mapping[Path, str]

    @property
    def log(self) -> Path:
        """The file for all that is printed."""
        return self.folder / "build.log"

    @property
    def scratch(self) -> Path:
        """The folder for temporary files, where the user wants them."""
        chosen = chosen_place(self.environ, "TMPDIR")
        return Path(chosen) / scratch_name(self.definition.key) if chosen else self.folder / "tmp"

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Make the folders and remove them at the end; raise `ImageError` for what failed in the block, in one line."""
        try:
            remove_tree(self.folder)  # of a process with our number, on a host that has been started again
            make_folder(self.folder)
            self.scratch.mkdir(parents=True, mode=0o700)
            for name in ("tmp", "var/tmp"):
                (self.scratch / "of-post" / name).mkdir(parents=True)
                (self.scratch / "of-post" / name).chmod(0o1777)
            yield
        except OSError as error:
            raise explain_os(error, self.written) from error
        except ImageError as error:
            raise with_log(error, self.log, self.cache, self.definition.key) from None
        finally:
            remove_tree(self.scratch)
            remove_tree(self.folder)

    def make(self, options: Sequence[str], on_progress: OnProgress, *, first_words: str) -> Path:
        """Let the runtime build the image in our folder, with *options*; raise `ImageError` where it does not."""
        definition, runtime = self.definition, self.runtime
        recipe, lines, target = self.folder / "image.def", deque[str](maxlen=_KEPT_LINES), self.folder / "image.sif"
        recipe.write_text(definition.text, encoding="utf-8")
        require_unchanged(definition)
        login = login_for(definition.base.partition("/")[0], self.environ)  # the host that the digest was asked of
        secrets = [*secrets_in(self.environ), *([login.password] if login else [])]
        command = build_command(runtime, target, recipe, is_root=os.geteuid() == 0, options=options)
        code = 0
        kept = [self.cache.layers] if is_ours(self.cache.layers) else []  # another's, where people share the folder
        with open_file(self.log, encoding="utf-8") as log:
            print(first_words, file=log)
            for layers in (*kept, self.folder / "layers"):  # the last: see _TORN
                variables = build_environment(
                    self.environ, scratch=self.scratch, layers=layers, login=login, plain_http=definition.plain_http
                )
                code = self._run(command, variables, secrets, lines, log, on_progress)
                if code == 0 or not any(_TORN in line for line in lines):
                    break
        if code != 0:
            raise explain(lines, code, self.written, runtime)
        require_unchanged(definition)
        return target

    def _run(
        self,
        command: list[str],
        environ: Mapping[str, str],
        secrets: list[str],
        lines: deque[str],
        log: IO[str],
        on_progress: OnProgress,
    ) -> int:
        """Run a build to its end and return its exit status; it ends with us, however we end.

        What it prints is written to *log*, and its last lines are appended to *lines*, without colours and *secrets*.
        """
        stage = "preparing"
        cwd = Path(self.definition.folder) if self.definition.folder is not None else None
        with guarded(command, folder=self.folder, environ=environ, cwd=cwd, processors=self.processors) as process:
            assert process.stdout is not None
            for raw in process.stdout:
                line = without_colours(raw).rstrip()
                for secret in secrets:
                    line = line.replace(secret, "***")
                lines.append(line)
                print(line, file=log)
                stage = next((word for sign, word in _STAGES if sign in line), stage)
                on_progress(BuildProgress(stage=stage, words=NOISE.sub("", line)))
            return process.wait()


def _check_place(cache: Cache) -> None:
    """Make sure that the image can be put where it belongs: Apptainer itself would notice that only after the build."""
    probe = draft_of(cache.root / "probe")
    try:
        make_home(cache.root)
        make_folder(cache.layers)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise explain_os(error, {cache.root: IMAGES}) from error


def _check_room(definition: Definition, written: Mapping[Path, str]) -> None:
    """Raise `ImageError` where a disk has less room than the build will need; a quota is only noticed when it is hit.

    The need is estimated from the size of the base image: `_ROOM` times its compressed layers, at least `_LEAST_ROOM`.
    """
    need = max(_LEAST_ROOM, _ROOM * (definition.base_size_bytes or 0))
    for place, setting in written.items():
        try:
            free = shutil.disk_usage(place).free
        except OSError as error:
            raise ImageError(f"{place} ({setting}): {error.strerror}: make it, or unset it") from error
        if free < need:
            raise ImageError(
                f"{place} has {_size(free)} free, and building {definition.base} needs about {_size(need)}: "
                f"{more_room(setting)}"
            )


def _describe(
    definition: Definition, image: Path, runtime: Runtime, environ: Mapping[str, str], build_s: float
) -> ImageRecord:
    """Return the record of a built image, from the file itself rather than from what the program says of it.

    Raises `ImageError` where there is no image, or where it was built from another definition.
    """
    inside = inspect_definition(runtime, image, environ) if image.is_file() else None
    if inside is None:
        raise ImageError(f"{runtime} said that it had built an image, and there is none that can be read")
    if _words_of(inside) != _words_of(definition.text):
        raise ImageError(f"{runtime} has built something else than the definition says")
    status = image.stat()
    return ImageRecord(
        key=definition.key,
        path=str(image),
        sha256=sha256_of(image),
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        definition=definition.text,
        base=definition.base,
        base_digest=definition.base_digest,
        architecture=definition.architecture,
        builder=user_name(os.geteuid()),
        built_at=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        built_on=socket.gethostname(),
        build_s=round(build_s, 1),
        runtime=str(runtime),
        labels=_labels_of(definition.text),
        files=definition.files,
        packages=installed_packages(runtime, image, environ),
    )


def _words_of(text: str) -> list[str]:
    """Return the words of a definition, which a program may space differently, without comments."""
    return [word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.split()]


def _labels_of(text: str) -> dict[str, str]:
    pieces = pieces_of(text)
    sections = [piece for piece in pieces[last_stage(pieces) :] if section_name(piece) == "%labels"]
    pairs = [line.strip().partition(" ") for _, *lines in sections for line in lines if line.strip()]
    return {name: value.strip() for name, _, value in pairs if not name.startswith("#")}


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
