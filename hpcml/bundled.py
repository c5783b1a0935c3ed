"""The bundle: all modules that a job loads in one file, and how Python finds them there (`use_bundle`).

For each module Python asks the file system some eight questions. An agent loads 130 modules before the user's program
starts, and on a shared parallel file system one metadata server answers the agents of a thousand nodes. So the modules
lie in one file besides, a bundle among the compiled modules of this folder, which `hpcml.agent.bundle` makes. It is
used where this very Python made it and nothing that it was made of has changed since; else, and for a module that is
not in it, Python looks as ever. What is needed until the program starts is read module by module; all once something
else is, or by `read_rest`. This module itself loads nothing but what Python has loaded before: so the names of Python's
import come from where importlib has them from, too.
"""

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import (
    ExtensionFileLoader,
    SourceFileLoader,
    cache_from_source,
    spec_from_file_location,
)
from _thread import RLock

TYPE_CHECKING = False  # not typing's own, which is not loaded yet
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

MAGIC = b"hpcml bundle 3\n"
_LENGTH_BYTES = 8
# Modules that others import for what hardly any agent does: they are loaded at their first use. So `inspect` is for
# dataclasses that have no docstring, `bz2` for archives, `pynvml` for runs with GPUs, `psutil` for the sampler.
_WHEN_USED = frozenset(
    {"bz2", "copy", "csv", "inspect", "ipaddress", "locale", "lzma", "psutil", "pynvml", "random", "shutil", "tempfile"}
)


class Bundle:
    """A bundle that was read: it finds modules for Python's import (importlib.abc.MetaPathFinder).

    The file is MAGIC, three lengths in 8 bytes each, the head, and all codes, marshalled. The lengths are those of the
    head, of the codes that are needed until the program starts, and of all codes. The head is a dict: ``python`` is
    sys.version; ``watched`` are pairs of a path and what `status_of` said of it; ``modules`` has by name the file, the
    folder of a package or None, and from where to where lies its code with the texts that `dataclasses` writes for its
    classes and what these are compiled to, None for an extension module; ``patterns`` has what regular expressions, by
    text and flags, are compiled to, marshalled, since a start uses few of them. Both compilations are more than half of
    the time that it takes to load what an agent needs. ``absent`` are modules of Python's library that this Python has
    not, ``sources`` says where those pairs lie of which a submission asks.
    """

    def __init__(self, path: str) -> None:
        """Raise `OSError` where *path* cannot be read, and `ValueError`, `EOFError` or `TypeError` for what is none."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._begin(os.read(self._file, len(MAGIC) + 3 * _LENGTH_BYTES))
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self, begin: bytes) -> None:
        if not begin.startswith(MAGIC):
            raise ValueError(f"it does not begin with {MAGIC!r}")
        places = range(len(MAGIC), len(MAGIC) + 3 * _LENGTH_BYTES, _LENGTH_BYTES)
        head, early, size = (int.from_bytes(begin[at : at + _LENGTH_BYTES], "little") for at in places)
        self._codes_at, self._early, self._size = len(begin) + head, early, size
        if os.lseek(self._file, 0, os.SEEK_END) != self._codes_at + size:
            raise ValueError("a part of it is missing")
        os.posix_fadvise(self._file, self._codes_at, early, os.POSIX_FADV_WILLNEED)  # from afar: while it loads others
        self.head = marshal.loads(os.pread(self._file, head, len(begin)))  # noqa: S302 - trusted as compiled modules
        self._codes = b""  # all, once the file is closed
        self._written: dict[str, CodeType] = {}
        self._lock = RLock()  # threads may load modules at the same time, and must not read a file that is closed

    def is_current(self) -> bool:
        """Tell whether this Python made it, and what an agent looks at is as it was then."""
        return self.head["python"] == sys.version and all(status_of(path) == was for path, was in self.head["watched"])

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return where the module *name* is from; None: it is not in the bundle.

        Raises `ModuleNotFoundError` for a module of Python's library that is nowhere.
        """
        if name not in self.head["modules"]:
            if name in self.head["absent"]:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return None
        return self.spec_of(name, *self.head["modules"][name])

    def spec_of(self, name: str, file: str, folder: str | None, place: tuple[int, int] | None) -> ModuleSpec | None:
        """Return the spec of the module *name* from *file*, whose code lies at *place*; None: an extension module."""
        loader: Any = ExtensionFileLoader(name, file) if place is None else _Loader(self, name, file, place)
        if name in _WHEN_USED:
            loader = _WhenUsed(loader)
        return spec_from_file_location(
            name, file, loader=loader, submodule_search_locations=None if folder is None else [folder]
        )

    def at(self, place: tuple[int, int]) -> "Any":  # noqa: ANN401 - whatever it is
        """Return what lies at *place*; raise `OSError` where that cannot be read any more."""
        begin, end = place
        with self._lock:
            if begin >= self._early:
                self.read_rest()
            code = self._codes[begin:end] or self._read(begin, end)
        return marshal.loads(code)  # noqa: S302 - trusted as Python's compiled modules beside it

    def _read(self, begin: int, end: int) -> bytes:
        read = os.pread(self._file, end - begin, self._codes_at + begin)
        if len(read) != end - begin:
            raise OSError("the bundle of modules has become shorter")
        return read

    def read_rest(self) -> None:
        """Read all codes, once, and close the file; raise `OSError` where they cannot be read any more."""
        with self._lock:
            if not self._codes:
                self._codes = self._read(0, self._size)
                self.close()

    def close(self) -> None:
        """Close the file, of which nothing more is read."""
        os.close(self._file)

    def code_of(self, place: tuple[int, int]) -> "CodeType":
        """Return the code of the module at *place*, after which `execute` knows the texts for its classes."""
        code: CodeType
        code, written = self.at(place)
        self._written.update(written)
        return code

    def compiled(self, pattern: str | bytes, flags: int, compiler: ModuleType) -> "Any":  # noqa: ANN401 - a re.Pattern
        """Return what *compiler*, which is re._compiler, makes of *pattern*, or None where that is not known."""
        known = self.head["patterns"].get((pattern, flags))
        if known is None:
            return None
        return compiler._sre.compile(pattern, *marshal.loads(known))  # noqa: S302, SLF001 - as above, and as that does

    def execute(self, text: str, *names: dict[str, object]) -> None:
        """Do what ``exec`` does with a *text* of `dataclasses`, which is compiled already or, where it is new, now."""
        exec(self._written.get(text, text), *names)  # noqa: S102 - that library's own text


class _WhenUsed:
    """Has a module loaded by *loader* once something of it is used, which no import statement alone is.

    With the library's own LazyLoader a second one loads the module.
    """

    def __init__(self, loader: "Any") -> None:  # noqa: ANN401 - of any kind
        self.loader, self.lock, self.has_begun = loader, RLock(), False

    def create_module(self, spec: ModuleSpec) -> "Any":  # noqa: ANN401 - a module, or None
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _Unused

    def load(self, module: ModuleType) -> None:
        with self.lock:  # of another thread that loads it at this moment
            if not self.has_begun:
                self.has_begun = True
                self.loader.exec_module(module)
                spec: Any = module.__spec__
                spec.loader = module.__loader__ = self.loader
                module.__class__ = ModuleType


class _Unused(ModuleType):
    """A module of which nothing was used yet, or that is being loaded."""

    def __getattribute__(self, name: str) -> "Any":  # noqa: ANN401 - whatever is in a module
        if name != "__spec__":  # an import asks for that
            _load(self)
        return ModuleType.__getattribute__(self, name)  # it may be of another class by now

    def __setattr__(self, name: str, value: object) -> None:
        _load(self)  # which would set it back
        ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _load(self)
        ModuleType.__delattr__(self, name)


def _load(module: _Unused) -> None:
    loader = ModuleType.__getattribute__(module, "__dict__")["__loader__"]
    if isinstance(loader, _WhenUsed):
        loader.load(module)


class _Loader(SourceFileLoader):
    """Loads a module as Python would, but for its code, which is in the bundle."""

    def __init__(self, bundle: Bundle, name: str, file: str, place: tuple[int, int]) -> None:
        super().__init__(name, file)
        self._bundle, self._place = bundle, place

    def get_code(self, fullname: str) -> "CodeType | None":
        try:
            return self._bundle.code_of(self._place)
        except OSError:  # the file system of the bundle is gone, and that of Python's own compiled modules perhaps not
            return super().get_code(fullname)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if self.name == "dataclasses":
            vars(module)["exec"] = self._bundle.execute  # a global name of its own, before Python's
        elif self.name == "re._compiler":
            compile_anew = module.compile

            def compile_once(pattern: "Any", flags: int = 0) -> "Any":  # noqa: ANN401 - as that does
                known = self._bundle.compiled(pattern, flags, module)
                return compile_anew(pattern, flags) if known is None else known

            vars(module)["compile"] = compile_once


def place_of_bundle() -> str:
    """Return the path of the bundle of this installation and this Python, among the compiled modules."""
    return cache_from_source(__file__).removesuffix(".pyc") + ".bundle"


def status_of(path: str) -> tuple[int, int] | None:
    """Return what changes with the file or folder *path*: its time in ns and size in bytes; None: it is not there."""
    try:
        status = os.stat(path)  # noqa: PTH116 - pathlib is a module more, and takes another five
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def look_in_library_first() -> None:
    """Have Python find its own modules before others of their names: a folder of PYTHONPATH may have a queue.py.

    Programs that this process starts have a path of their own.
    """
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is a module more, and takes another five
    first = [folder for folder in sys.path if folder in (library, f"{library}/lib-dynload")]
    sys.path[:] = [*first, *(folder for folder in sys.path if folder not in first)]


def use_bundle() -> None:
    """Have Python find modules in its library, and in the bundle, where there is one that is current."""
    look_in_library_first()
    try:
        bundle = Bundle(place_of_bundle())
        if bundle.is_current():
            sys.meta_path.insert(0, bundle)
        else:
            bundle.close()
    except (OSError, ValueError, EOFError, TypeError, KeyError):
        return  # there is none, or half of one: it takes longer, and that is all


def read_rest() -> None:
    """Read the rest of the bundle that is in use, so that its file is not needed again; raise `OSError`."""
    for finder in sys.meta_path:
        if isinstance(finder, Bundle):
            finder.read_rest()
