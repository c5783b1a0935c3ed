"""The commands' bundle: what a command loads, each module read when it is wanted, and how Python finds it there.

`hpcml run` loads 650 modules. So those of all commands lie in one file, beside the agents' bundle (`hpcml.bundled`) and
made with it. A command needs a part of them, and its user may have set PYTHONPATH, upgraded a package or edited a file
since. So here each module stands for itself, as the compiled modules do that Python keeps: it is taken from the bundle
where Python would find the same file, with the same time and size, in a folder in which nothing came or went. Whatever
else is asked for is found as ever, and finders that somebody has set before Python's own come first.
"""

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import PathFinder

from hpcml.bundled import Bundle, place_of_bundle, status_of

TYPE_CHECKING = False  # not typing's own, which is not loaded yet
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MAGIC = b"hpcml commands 2\n"
LENGTHS = 8  # bytes of each number before the head
MARK = 8  # bytes of the mark before each code
_MANY = 16  # modules: what these cost more is not worth the second that a new bundle takes


class CommandsBundle(Bundle):
    """A bundle of which the head was read (importlib.abc.MetaPathFinder).

    The file is MAGIC, the lengths of the head and of the rest, 8 bytes each, the head, and all codes, each after a mark
    that no other bundle has. The head is a dict: ``python`` is sys.version and ``mark`` that mark; ``modules`` has by
    name how the file's path ends, after folder and last part of the name, what `status_of` said of it, and from where
    to where the code lies, None for an extension module; ``folders`` has by the name of a package where its modules
    are and what `status_of` said of that folder, ``tops`` the same of a module that is in no package; ``pythons`` are
    the folders of Python's own library. What lies with the code of a module is as in `Bundle`, and so is ``patterns``,
    but that it has places of what is compiled.
    """

    def __init__(self, file: int) -> None:
        """Raise `ValueError`, `EOFError`, `TypeError` or `OSError` where the open *file* is no bundle."""
        begin = len(MAGIC) + 2 * LENGTHS
        first = os.pread(file, begin, 0)
        lengths = first[len(MAGIC) :]
        length, rest = int.from_bytes(lengths[:LENGTHS], "little"), int.from_bytes(lengths[LENGTHS:], "little")
        if not first.startswith(MAGIC) or os.fstat(file).st_size != begin + length + rest:
            raise ValueError("it is none, or a part of it is missing")
        self.head = marshal.loads(os.pread(file, length, begin))  # noqa: S302 - trusted as Python's compiled modules
        self._file, self._codes_begin = file, begin + length
        self._written = {}
        self.changed: set[str] = set()  # modules that were asked for and have another file now

    def find_spec(self, name: str, path: "Any" = None, target: object = None) -> ModuleSpec | None:  # noqa: ANN401, ARG002
        """Return where the module *name* is from; None: it is not in the bundle, or Python would find another."""
        if name not in self.head["modules"]:
            return None
        end, was, place = self.head["modules"][name]
        package, _, last = name.rpartition(".")
        folder, of_folder = self.head["folders"][package] if package else self.head["tops"][name]
        if not (_is_first(folder, name, self.head["pythons"]) if path is None else list(path) == [folder]):
            return None
        file = f"{folder}/{last}{end}"
        if status_of(file) != was or status_of(folder) != of_folder:
            self.changed.add(name)
            return None
        return self.spec_of(name, file, f"{folder}/{last}" if end == "/__init__.py" else None, place)

    def at(self, place: tuple[int, int]) -> "Any":  # noqa: ANN401 - whatever it is
        """Return what lies at *place*.

        Raises `OSError` where that cannot be read: somebody has closed the file, whose number is another file's now.
        """
        begin, end = place
        content = os.pread(self._file, end - begin, self._codes_begin + begin)
        if len(content) != end - begin or not content.startswith(self.head["mark"]):
            raise OSError("this is not the bundle any more")
        return marshal.loads(memoryview(content)[MARK:])  # noqa: S302 - as above

    def compiled(self, pattern: str | bytes, flags: int, compiler: "ModuleType") -> "Any":  # noqa: ANN401 - a re.Pattern
        """Return what *compiler*, which is re._compiler, makes of *pattern*, or None where that is not known."""
        place = self.head["patterns"].get((pattern, flags))
        try:
            return None if place is None else compiler._sre.compile(pattern, *self.at(place))  # noqa: SLF001 - as that does
        except OSError:
            return None

    def read_rest(self) -> None:
        """Read nothing: a command may need any of it."""


def _is_first(folder: str, name: str, pythons: frozenset[str]) -> bool:
    """Tell whether Python looks in *folder*, and no folder before that, but for *pythons*, has a module *name*."""
    if folder not in sys.path:
        return False
    before = [each for each in sys.path[: sys.path.index(folder)] if each not in pythons]
    return not before or PathFinder.find_spec(name, before) is None


def place_of_commands() -> str:
    """Return the path of the commands' bundle, beside the agents'."""
    return place_of_bundle().removesuffix(".bundle") + ".commands"


def commands_bundle() -> CommandsBundle | None:
    """Return the bundle that this Python made, or None."""
    try:
        file = os.open(place_of_commands(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        bundle = CommandsBundle(file)
        if bundle.head["python"] == sys.version:
            return bundle
    except (OSError, ValueError, EOFError, TypeError, KeyError):
        pass  # half of one
    os.close(file)
    return None


def use_commands() -> None:
    """Have Python find modules in the commands' bundle, where there is one, before it looks in folders."""
    if PathFinder in sys.meta_path and (bundle := commands_bundle()) is not None:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), bundle)


def commands_are_fresh() -> bool:
    """Tell whether there is a bundle of this Python, and it had most of what this command has asked for."""
    for finder in sys.meta_path:
        if isinstance(finder, CommandsBundle):
            return len(finder.changed) <= _MANY
    bundle = commands_bundle()  # a command that began otherwise has not asked it
    if bundle is not None:
        bundle.close()
    return bundle is not None
