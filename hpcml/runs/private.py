"""What hpcml executes or believes is this user's alone: made so, and looked at before it is executed or believed.

A run.json says what the agent starts, a job.sh what a scheduler starts, the file of a submission what is submitted or
removed. Whoever could write one of them, or put another in its place, would act as its owner. So everything below
HPCML_HOME is created with the modes 0700 and 0600, whatever the umask and the default ACL of the folder
above are (`make_home`, `make_folder`, `open_file`, `write_file`); `claim_home` refuses a home that others share; and
`check` and `read` look at a file once more at the moment of its use.

What counts as private: every folder from HPCML_HOME down to the file, and the file, belongs to this user or to root,
and none of them may be written by others, unless a folder above it lets nobody else in. The mode bits tell it for ACLs
too: where there is one, those of the group are its mask (man 5 acl).

Folders above HPCML_HOME may be anybody's. A project's folder is often writable for a whole group, each of whom could
move a home away; but nobody can put one in its place that belongs to its owner, and that is noticed.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hpcml.errors import OF_THE_DISK, TAKES_NOTHING, NotPrivateError, why_not

FOLDER = 0o700
FILE = 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SHARE = (
    "results are shared by a store on PostgreSQL, hpcml export, or a copy for hpcml sync --add (docs/shared-folders)"
)
_READ = "(docs/shared-folders)"
_OURS = frozenset({"runs", "submissions", "code", "builds", "checksums", "elsewhere"})
_OF_FOLDERS = frozenset({"runs", "submissions"})
_STORE = "store.db"
_DEFAULT_ACL = "system.posix_acl_default"  # what libraries make here would get it instead of the umask


def make_folder(path: Path, *, parents: bool = False) -> None:
    """Make the folder *path*, for its owner only, unless it exists; *parents* makes those above it likewise.

    Raises `OSError`.
    """
    try:
        path.mkdir(mode=FOLDER)
    except FileNotFoundError:
        if not parents:
            raise
        make_folder(path.parent, parents=True)
        make_folder(path)
    except FileExistsError:
        if not path.is_dir():
            raise


def make_home(home: Path) -> None:
    """Make *home*, for its owner only, unless it exists; folders above it get what the umask leaves, as others' do.

    It hands down no ACL that it inherited. The folder of images is made by this, too. Raises `OSError`.
    """
    if home.is_dir():
        return
    home.parent.mkdir(parents=True, exist_ok=True)
    make_folder(home)
    _hand_down_nothing(home)


def open_file(path: Path, mode: str = "w", *, permissions: int = FILE, **options: Any) -> IO[Any]:  # noqa: ANN401 - open's
    """Open *path* as `open` does; a file that this creates is readable and writable for its owner only.

    *permissions* other than that are for what is shared on purpose; the umask is applied to them. A symbolic link is
    not followed. Raises `OSError`.
    """

    def opener(name: str, flags: int) -> int:
        if mode == "r":
            flags |= os.O_NONBLOCK  # of a pipe that somebody put there, nobody may ever come to the other end
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, permissions)

    return open(path, mode, opener=opener, **options)


def write_file(path: Path, text: str) -> None:
    """Write *text* (UTF-8) to *path*, which is created for its owner only. Raises `OSError`."""
    with open_file(path, "wb", buffering=0) as file:
        _write_all(file, text.encode())


def create_file(path: Path, text: str) -> None:
    """Write *text* (UTF-8) as `write_file` does to *path*, which must not exist: else raises `FileExistsError`."""
    with open_file(path, "xb", buffering=0) as file:
        _write_all(file, text.encode())


def _write_all(file: IO[bytes], content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]  # a disk that is nearly full takes a part, and refuses the next


def check(path: Path, *, top: Path) -> None:
    """Raise `NotPrivateError` where another user could have written *path*, or put it there.

    Looked at are *path* and the folders above it up to *top*, which is *path* or one of those. One that is not there
    is refused, too.
    """
    is_closed = path != top and _is_closed_above(path, top)
    _judge(path, _status(path), is_closed=is_closed)


def read(path: Path, *, top: Path) -> str:
    """Return the text of the file *path* (UTF-8) after `check`; what is read is the very file that was looked at.

    It may be no symbolic link. Raises `OSError` and `NotPrivateError`, and `ValueError` where it is no UTF-8.
    """
    is_closed = _is_closed_above(path, top)
    with open_file(path, "r", encoding="utf-8") as file:
        _judge(path, os.fstat(file.fileno()), is_closed=is_closed)
        text: str = file.read()
        return text


def is_ours(path: Path) -> bool:
    """Tell whether *path* itself is there and belongs to this user or to root."""
    try:
        return path.lstat().st_uid in _trusted()
    except OSError:
        return False


def check_lone(path: Path) -> None:
    """Raise `NotPrivateError` where the file *path* is another user's, or may be written by others.

    That is for a file outside of HPCML_HOME, as a store can be; where its folder lets nobody else in, nobody else may.
    """
    folder = _status(path.parent, follow=True)
    _judge(path, _status(path), is_closed=not folder.st_mode & _OTHERS_ENTER)


def check_lent(path: Path) -> None:
    """Raise `NotPrivateError` where somebody else than this user, root and the owner of its folder could write *path*.

    That is for what people share on purpose, as images: whoever chose the folder trusts its owner, and nobody else.
    """
    folder, status = _status(path.parent, follow=True), _status(path)
    is_closed = not folder.st_mode & _OTHERS_ENTER
    if not is_closed and _may_be_written(folder) and not folder.st_mode & stat.S_ISVTX:
        raise NotPrivateError(f"{path.parent} may be written by others, who could exchange {path.name} {_READ}")
    if status.st_uid not in (*_trusted(), folder.st_uid):
        owner = user_name(status.st_uid)
        raise NotPrivateError(f"{path} belongs to {owner}, who is not the owner of its folder {_READ}")
    if stat.S_ISLNK(status.st_mode) or (not is_closed and _may_be_written(status)):
        raise NotPrivateError(f"{path} may be written by others: chmod go-w {path}, or use one of your own {_READ}")


def claim_home(home: Path) -> bool:
    """Make sure that *home* is this user's alone, before anything in it is executed, cancelled or removed.

    It is made where it is absent. One of this user's that was open to others is closed with the folders that
    hpcml made in it; True is returned then, which the user should be told. What is not hpcml's in it
    stays open to be read. Raises `NotPrivateError` for a home that others share (`why_shared`), and where it cannot be
    made or closed.
    """
    try:
        make_home(home)
        if shared := why_shared(home):
            raise NotPrivateError(shared)
        changes = _to_close(home)
        for folder, mode in changes:
            with suppress(FileNotFoundError):  # a run that is being removed
                folder.chmod(mode)
                _hand_down_nothing(folder)
        if not changes:
            return False
        if shared := why_shared(home, is_thorough=True):  # once more, since nobody else can come in any more
            raise NotPrivateError(shared)
        if _to_close(home):
            raise NotPrivateError(f"HPCML_HOME={home} stays open to others after chmod 700: choose another file system")
    except OSError as error:
        raise NotPrivateError(no_home(home, error, "made yours alone")) from error
    return True


def no_home(home: Path, error: OSError, wanted: str) -> str:
    """Return one line about a *home* that is *wanted* to be made (yours alone), and cannot be or cannot be seen."""
    if error.errno in OF_THE_DISK - TAKES_NOTHING:
        return f"HPCML_HOME={home} cannot be looked at: {why_not(error, home)} (is its file system mounted, and well?)"
    return f"HPCML_HOME={home} cannot be {wanted}: {why_not(error, home)} (choose another)"


def why_shared(home: Path, *, is_thorough: bool = False) -> str | None:
    """Return in one line why *home* is not this user's, and how results are shared instead; None where it is.

    One that is only open to others, but belongs to this user with all that is in it, is not shared: `claim_home` closes
    it. Experiments, runs and submissions are looked through where it is open, or *is_thorough*: nobody else gets into
    one that is closed. Raises `OSError` where it is not there.
    """
    status = home.stat()
    if status.st_uid not in _trusted():
        return _refusal(home, f"belongs to {user_name(status.st_uid)}")
    if _may_be_written(status) and (status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX):
        return _refusal(home, "is for others to write to")
    for place in _entries(home, is_thorough=is_thorough or is_open(home)):
        found = _still_there(place, follow=False)
        if found is not None and found.st_uid not in _trusted():
            return _refusal(home, f"is shared: {place.relative_to(home)} belongs to {user_name(found.st_uid)}")
    return None


def is_open(home: Path) -> bool:
    """Tell whether others may look into *home*, or write to it, or to what hpcml has made in it."""
    return bool(_to_close(home))


def exchangeable(home: Path) -> Path | None:
    """Return the nearest folder above *home* where others may rename what is not theirs; None where there is none.

    That is a folder that a group or everybody may write to, and that has no sticky bit.
    """
    for folder in home.resolve().parents:
        status = folder.stat()
        if _may_be_written(status) and not status.st_mode & stat.S_ISVTX:
            return folder
        if status.st_uid in _trusted() and not status.st_mode & _OTHERS_ENTER:
            return None
    return None


def user_name(uid: int) -> str:
    """Return the name of the user, or "user 1234" for one that this machine does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _hand_down_nothing(folder: Path) -> None:
    with suppress(OSError):  # it has none, or its file system knows none
        os.removexattr(folder, _DEFAULT_ACL)


def _is_closed_above(path: Path, top: Path) -> bool:
    """Judge the folders from *top*, by whatever links it was named, down to that of *path*."""
    is_closed = _judge(top, _status(top, follow=True), is_closed=False)
    place = top
    for name in path.relative_to(top).parts[:-1]:
        place /= name
        is_closed = _judge(place, _status(place), is_closed=is_closed)
    return is_closed


def _judge(place: Path, status: os.stat_result, *, is_closed: bool) -> bool:
    """Raise `NotPrivateError` for one step of a way, or return whether others can get no further than here.

    *is_closed*: no further than a step before.
    """
    if status.st_uid not in _trusted():
        raise NotPrivateError(
            f"{place} belongs to {user_name(status.st_uid)}: hpcml executes and believes only what is your own {_READ}"
        )
    if stat.S_ISLNK(status.st_mode):  # our own: to another disk, say, where nothing that we know of is closed
        return _judge(place, _status(place, follow=True), is_closed=False)
    if not is_closed and _may_be_written(status):
        raise NotPrivateError(
            f"{place} may be written by others, who could act as you: chmod go-w {place} once you have seen that what "
            f"is in it is yours {_READ}"
        )
    return is_closed or (stat.S_ISDIR(status.st_mode) and not status.st_mode & _OTHERS_ENTER)


def _status(place: Path, *, follow: bool = False) -> os.stat_result:
    try:
        return place.stat(follow_symlinks=follow)
    except OSError as error:
        raise NotPrivateError(f"{place} cannot be looked at: {error.strerror}") from error


def _entries(home: Path, *, is_thorough: bool) -> Iterator[Path]:
    """Yield what lies in *home*; where *is_thorough*, also what lies in hpcml's folders, down to runs and batches."""
    for place in _listed(home):
        yield place
        if is_thorough and place.name in _OURS:
            for inner in _listed(place):
                yield inner
                if place.name in _OF_FOLDERS:
                    yield from _listed(inner)


def _to_close(home: Path) -> list[tuple[Path, int]]:
    """Return the folders that others may enter or write to and should not, with their modes to be, the home first."""
    there = _listed(home)
    ours = [place for place in there if place.name in _OURS]
    is_all_ours = all(place.name in _OURS or place.name.startswith((".", _STORE)) for place in there)
    mode = stat.S_IMODE(home.stat().st_mode)
    to_be = mode & ~(_OTHERS if is_all_ours else _OTHERS_WRITE)
    wanted = [(home, to_be)] if to_be != mode else []
    if mode & _OTHERS_ENTER:
        inner = [place for folder in ours if folder.name in _OF_FOLDERS for place in _listed(folder)]
        folders = [folder for folder in (*ours, *inner) if folder.is_dir() and not folder.is_symlink()]
        modes = [(folder, stat.S_IMODE(found.st_mode)) for folder in folders if (found := _still_there(folder))]
        wanted += [(folder, mode & ~_OTHERS) for folder, mode in modes if mode & _OTHERS]
    return wanted


def _still_there(place: Path, *, follow: bool = True) -> os.stat_result | None:
    """Return what is known of *place*, which was listed a moment ago; None where it is gone.

    Runs are removed, and SQLite has files that come and go with each change.
    """
    try:
        return place.stat(follow_symlinks=follow)
    except FileNotFoundError:
        return None


def _listed(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries]
    except (NotADirectoryError, FileNotFoundError, PermissionError):  # another's, which is told of by itself
        return []


def _trusted() -> tuple[int, int]:
    return os.geteuid(), 0


def _may_be_written(status: os.stat_result) -> bool:
    return bool(status.st_mode & _OTHERS_WRITE)


def _refusal(home: Path, why: str) -> str:
    user = user_name(os.geteuid())
    places = ((home, home / user), (home.parent, home.with_name(f"{home.name}-{user}")))
    example = next((f", as {place}" for above, place in places if os.access(above, os.W_OK | os.X_OK)), "")
    return f"HPCML_HOME={home} {why}: choose one of your own{example}; {_SHARE}"
