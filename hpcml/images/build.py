"""One image built: once among all who want it, out of sight until it is whole, and without a trace if it fails."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType

from hpcml import lease
from hpcml.errors import ImageError
from hpcml.image import Definition, ImageRecord
from hpcml.images.cache import Cache, draft_of, remove_tree, sha256_of
from hpcml.images.guarded import await_end, guarded
from hpcml.images.logins import login_for
from hpcml.images.runtime import (
    Runtime,
    build_command,
    build_environment,
    chosen_place,
    inspect_definition,
    secrets_in,
)

_KEPT_LINES = 2000
_ROOM = 5  # layers, unpacked, and packed again: 3 to 5 times what is downloaded
_LEAST_ROOM = 32 << 20
_FULL = ("No space left on device", "no space left on device", "Disk quota exceeded", "disk quota exceeded")
_NOISE = re.compile(r"^(INFO|WARNING|VERBOSE|DEBUG|ERROR|FATAL)\s*:\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_POST_FAILED = re.compile(r"while running %post section: exit status (\d+)")
_STAGES = (
    ("Fetching OCI image", "downloading"),
    ("Extracting OCI image", "unpacking"),
    ("Running post scriptlet", "installing"),
    ("Creating SIF file", "packing"),
    ("Build complete", "checking"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a build is."""

    stage: str  # waiting | preparing | downloading | unpacking | installing | packing | checking
    words: str = ""  # the latest line


OnProgress = Callable[[Progress], None]


def build(
    definition: Definition,
    cache: Cache,
    *,
    runtime: Runtime,
    environ: Mapping[str, str],
    on_progress: OnProgress = lambda _: None,
    wait: bool = True,
    patience: lease.Patience | None = None,
) -> ImageRecord:
    """Return the image of *definition*, built now if it is not there; of several who ask, one builds.

    Raises `ImageError`, after which nothing is there but, for a build that failed, what it printed.
    """
    patience = patience or lease.Patience()
    found = cache.find(definition.key)
    if found is not None:
        return found
    _check_place(cache)
    held = _await_lock(definition, cache, on_progress, patience, wait=wait)
    with lease.kept_alive(held, patience), _signals_clean_up():
        found = cache.find(definition.key)  # by the one we waited for
        if found is not None:
            return found
        chosen = chosen_place(environ, "TMPDIR")
        lease.clear_dead(cache.locks)
        cleaning = Progress(stage="waiting", words="a build that was killed is cleaning up")
        for path in cache.leftovers(Path(chosen) if chosen else None):
            await_end(path, on_wait=lambda: on_progress(cleaning))
            remove_tree(path)
        on_progress(Progress(stage="preparing"))
        _check_room(definition, cache, environ)
        return _build(definition, cache, runtime, environ, on_progress, held)


def _await_lock(
    definition: Definition, cache: Cache, on_progress: OnProgress, patience: lease.Patience, *, wait: bool
) -> lease.Lock:
    try:
        for found in lease.wait_for(cache.locks, definition.key, patience=patience):
            if isinstance(found, lease.Lock):
                return found
            if not wait:
                raise ImageError(f"image {definition.key[:12]} is being built by {found}: try again later")
            on_progress(Progress(stage="waiting", words=f"{found} builds it"))
    except OSError as error:
        raise _explain_os(error, cache) from error
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


def _build(
    definition: Definition,
    cache: Cache,
    runtime: Runtime,
    environ: Mapping[str, str],
    on_progress: OnProgress,
    held: lease.Lock,
) -> ImageRecord:
    began = time.monotonic()
    with _workplace(cache, definition.key, environ) as (folder, scratch):
        recipe, image = folder / "image.def", folder / "image.sif"
        lines: deque[str] = deque(maxlen=_KEPT_LINES)
        try:
            recipe.write_text(definition.text, encoding="utf-8")
            login = login_for(definition.base.partition("/")[0], environ)  # the host that the digest was asked of
            secrets = [*secrets_in(environ), *([login.password] if login else [])]
            variables = build_environment(
                environ,
                scratch=scratch,
                layers=cache.layers,
                login=login,
                plain_http=definition.plain_http,
            )
            command = build_command(runtime, image, recipe, is_root=os.geteuid() == 0)
            code = _run(command, folder, variables, secrets, lines, on_progress)
            if code != 0:
                raise _explain(lines, code, cache, runtime)
            record = _describe(definition, image, runtime, environ, time.monotonic() - began)
            _require_still_ours(held, definition)
            return cache.adopt(image, record)
        except OSError as error:
            raise _explain_os(error, cache) from error
        except ImageError as error:
            remove_tree(folder)  # first: the words need room, too
            raise _with_log(error, lines, cache, definition.key) from None


def _require_still_ours(held: lease.Lock, definition: Definition) -> None:
    if not held.is_ours:
        raise ImageError(
            f"image {definition.key[:12]}: another builder took us for dead (did this host sleep?): build again"
        )


def _check_place(cache: Cache) -> None:
    """Notice before building what Apptainer notices after it: that the image cannot be put where it belongs."""
    probe = draft_of(cache.layers, "probe")
    try:
        cache.layers.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _explain_os(error, cache) from error


def _check_room(definition: Definition, cache: Cache, environ: Mapping[str, str]) -> None:
    """Refuse to begin what cannot end; a quota is not seen here, but when it is hit."""
    need = max(_LEAST_ROOM, _ROOM * (definition.base_size_bytes or 0))
    elsewhere = [chosen for word in ("TMPDIR", "CACHEDIR") if (chosen := chosen_place(environ, word))]
    places = {cache.root, *map(Path, elsewhere)}
    for place in places:
        try:
            free = shutil.disk_usage(place).free
        except OSError as error:
            raise ImageError(
                f"{place} (APPTAINER_TMPDIR or _CACHEDIR): {error.strerror}: make it, or unset it"
            ) from error
        if free < need:
            raise ImageError(
                f"{place} has {_size(free)} free, and building {definition.base} needs about {_size(need)}: "
                "hpcml images prune, or set HPCML_IMAGES to another place"
            )


@contextmanager
def _workplace(cache: Cache, key: str, environ: Mapping[str, str]) -> Iterator[tuple[Path, Path]]:
    """Make the folder of this build, and that for temporary files where the user wants them elsewhere."""
    folder = cache.building(key)
    chosen = chosen_place(environ, "TMPDIR")
    scratch = Path(chosen) / folder.name.lstrip(".") if chosen else folder / "tmp"
    try:
        remove_tree(folder)  # of a process with our number, on a host that has been started again
        scratch.mkdir(parents=True, mode=0o700)
        folder.mkdir(exist_ok=True)
        yield folder, scratch
    finally:
        remove_tree(scratch)
        remove_tree(folder)


def _run(
    command: list[str],
    folder: Path,
    environ: Mapping[str, str],
    secrets: list[str],
    lines: deque[str],
    on_progress: OnProgress,
) -> int:
    """Run a build to its end; it ends with us, however we end."""
    stage = "preparing"
    with guarded(command, folder=folder, environ=environ) as process:
        assert process.stdout is not None
        for raw in process.stdout:
            line = _COLOUR.sub("", raw).rstrip()
            for secret in secrets:
                line = line.replace(secret, "***")
            lines.append(line)
            stage = next((word for sign, word in _STAGES if sign in line), stage)
            on_progress(Progress(stage=stage, words=_NOISE.sub("", line)))
        return process.wait()


def _describe(
    definition: Definition, image: Path, runtime: Runtime, environ: Mapping[str, str], build_s: float
) -> ImageRecord:
    """Look at what was built, and not at what the program says of it."""
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
        builder=getpass.getuser(),
        built_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        built_on=socket.gethostname(),
        build_s=round(build_s, 1),
        runtime=str(runtime),
        labels=_labels_of(definition.text),
    )


def _words_of(text: str) -> list[str]:
    """Return the words of a definition, which a program may space differently, without comments."""
    return [word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.split()]


def _labels_of(text: str) -> dict[str, str]:
    section = text.partition("%labels\n")[2].partition("\n%")[0]
    pairs = [line.partition(" ") for line in section.splitlines() if line.strip()]
    return {name: value for name, _, value in pairs}


def _explain(lines: deque[str], code: int, cache: Cache, runtime: Runtime) -> ImageError:
    """Return in one line why a build failed."""
    text = "\n".join(lines)
    if any(sign in text for sign in _FULL):
        return _NoRoomError(_no_room(cache))
    fatal = next((_NOISE.sub("", line) for line in reversed(lines) if line.startswith("FATAL:")), "")
    if failed := _POST_FAILED.search(text):
        own = [line for line in lines if line and not _NOISE.match(line) and not line.startswith("+ ")]
        errors = [_NOISE.sub("", line) for line in lines if line.startswith("ERROR")]  # the program's own
        last = (own or errors or ["it printed nothing"])[-1]
        return ImageError(f"a command of %post failed with exit status {failed[1]}: {last.strip()[:300]}")
    if "UNAUTHORIZED" in text or "DENIED" in text:
        return ImageError("the registry refuses the login: check NGC_API_KEY (docs/containers.md)")
    words = fatal or next((line for line in reversed(lines) if line), f"exit status {code}")
    return ImageError(f"{runtime} could not build the image: {words.strip()[:400]}")


class _NoRoomError(ImageError):
    """The disk is full, so that nothing is written about it either."""


def _explain_os(error: OSError, cache: Cache) -> ImageError:
    words = os.strerror(error.errno) if error.errno else str(error)
    if words in _FULL:
        return _NoRoomError(_no_room(cache))
    return ImageError(
        f"{error.filename or cache.root} cannot be written: {words} (set HPCML_IMAGES to a folder of yours with room)"
    )


def _no_room(cache: Cache) -> str:
    return (
        f"{cache.root}: no space left, or a quota is used up, while the image was built; nothing was left behind: "
        "hpcml images prune, or set HPCML_IMAGES to another place"
    )


def _with_log(error: ImageError, lines: deque[str], cache: Cache, key: str) -> ImageError:
    """Keep what a build printed where there is room for it, and say where."""
    if isinstance(error, _NoRoomError) or not lines:
        return error
    log = cache.failure(key)
    with suppress(OSError):
        log.parent.mkdir(exist_ok=True)
        log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        log.chmod(0o600)
        return ImageError(f"{error} (all it printed: {log})")
    return error


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
