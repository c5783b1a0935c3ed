"""The bundle: all modules that a job loads in one file, and how Python finds them there (`use_bundle`).

For each module Python asks the file system some eight questions. An agent loads 130 modules before the user's program
starts, and on a shared parallel file system one metadata server answers the agents of a thousand nodes. So the modules
lie in one file besides, a bundle among the compiled modules of this folder, which `hpcml.agent.bundle` makes. It is
used where this very Python made it and nothing that it was made of has changed since; else, and for a module that is
not in it, Python looks as ever. This module itself loads nothing but what Python has loaded before.
"""

import marshal
import os
import sys
from _thread import RLock
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source, spec_from_file_location
from types import CodeType, ModuleType

TYPE_CHECKING = False  # not typing's own, which is not loaded yet
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"hpcml bundle 1\n"
# Modules that others import for what hardly any agent does: they are loaded at their first use. So `inspect` is for
# dataclasses that have no docstring, `bz2` for archives, `pynvml` for runs with GPUs, `psutil` for the sampler.
_WHEN_USED = frozenset(
    {"bz2", "copy", "csv", "inspect", "ipaddress", "locale", "lzma", "psutil", "pynvml", "random", "tempfile"}
)


class Bundle:
    """A bundle that was read: it finds modules for Python's import (importlib.abc.MetaPathFinder).

    The file is MAGIC, the length of the head in 8 bytes, the head, and all codes, marshalled. The head is a dict:
    ``python`` is sys.version; ``watched`` are pairs of a path and what `status_of` said of it; ``modules`` has by name
    the file, the folder of a package or None, and from where to where the code lies, None for an extension module;
    ``written`` has the same for the texts that `dataclasses` writes and compiles for each class, and ``patterns`` for
    what regular expressions, by text and flags, are compiled to. Both compilations are more than half of the time that
    it takes to load what an agent needs. ``absent`` are modules of Python's library that this Python has not, ``size``
    is that of all codes in bytes.
    """

    def __init__(self, content: bytes) -> None:
        """Raise `ValueError`, `EOFError` or `TypeError` where *content* is no bundle."""
        if not content.startswith(MAGIC):
            raise ValueError(f"it does not begin with {MAGIC!r}")
        begin = len(MAGIC) + 8
        end = begin + int.from_bytes(content[len(MAGIC) : begin], "little")
        self.head = marshal.loads(content[begin:end])  # noqa: S302 - trusted as Python's compiled modules beside it
        self._codes = memoryview(content)[end:]
        if len(self._codes) != self.head["size"]:
            raise ValueError("a part of it is missing")

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
        file, folder, place = self.head["modules"][name]
        loader: Any = ExtensionFileLoader(name, file) if place is None else _Loader(self, name, file, place)
        if name in _WHEN_USED:
            loader = _WhenUsed(loader)
        return spec_from_file_location(
            name, file, loader=loader, submodule_search_locations=None if folder is None else [folder]
        )

    def at(self, place: tuple[int, int]) -> "Any":  # noqa: ANN401 - code, or what a pattern is compiled to
        """Return what lies at *place*."""
        return marshal.loads(self._codes[place[0] : place[1]])  # noqa: S302 - as above

    def compiled(self, pattern: str | bytes, flags: int, compiler: ModuleType) -> "Any":  # noqa: ANN401 - a re.Pattern
        """Return what *compiler*, which is re._compiler, makes of *pattern*, or None where that is not known."""
        place = self.head["patterns"].get((pattern, flags))
        return None if place is None else compiler._sre.compile(pattern, *self.at(place))  # noqa: SLF001 - as that does

    def execute(self, text: str, *names: dict[str, object]) -> None:
        """Do what ``exec`` does with a *text* of `dataclasses`, which is compiled already or, where it is new, now."""
        place = self.head["written"].get(text)
        exec(text if place is None else self.at(place), *names)  # noqa: S102 - that library's own text


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
        own = ModuleType.__getattribute__(self, "__dict__")
        if name != "__spec__" and isinstance(own["__loader__"], _WhenUsed):  # an import asks for __spec__
            own["__loader__"].load(self)
        return ModuleType.__getattribute__(self, name)  # it may be of another class by now


class _Loader(SourceFileLoader):
    """Loads a module as Python would, but for its code, which is in the bundle."""

    def __init__(self, bundle: Bundle, name: str, file: str, place: tuple[int, int]) -> None:
        super().__init__(name, file)
        self._bundle, self._place = bundle, place

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        code: CodeType = self._bundle.at(self._place)
        return code

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


def use_bundle() -> None:
    """Have Python find modules in the bundle, where there is one that is current."""
    try:
        with open(place_of_bundle(), "rb", buffering=0) as file:  # noqa: PTH123 - as above
            bundle = Bundle(file.read())
        if bundle.is_current():
            sys.meta_path.insert(0, bundle)
    except (OSError, ValueError, EOFError, TypeError, KeyError):
        return  # there is none, or half of one: it takes longer, and that is all
