"""What a Python program says that it writes to, by absolute places and places in a home.

Names are followed through assignments, defaults of arguments and settings, and modules of the program, and no further:
a place with a part that is not known here may be each run's own.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from warnings import catch_warnings, simplefilter

from hpcml.commands.submit.shell_places import OF_SHELLS, of_shell, place_in

_WRITES = re.compile(
    r"^_*(?:(?:torch|np|numpy|do|maybe|async)_)?(?:save|dump(?!s$)|write|export|store|persist)|_(?:save|dump|write)$|"
    r"^to_(?:csv|parquet|pickle|json|hdf|sql|excel|feather|disk|file|netcdf|zarr)$|^tofile$|^rmtree$|imwrite|imsave|savefig|savez|savetxt|"
    r"^(?:chdir|SummaryWriter|FileWriter|\w*File(?:Handler|Backend)|CSVLogger|TensorBoard\w*|\w*Checkpoint\w*|"
    r"BackupAndRestore|DiskSaver|RDBStorage|FileLock|SoftFileLock|Memory|memmap|touch)$|checkpoint_to$"
)
_DATABASES = frozenset({"sqlite3", "duckdb", "aiosqlite", "apsw"})  # what else has a `connect` may be a socket
_OF_A_DATABASE = re.compile(r"\.(?:db|sqlite3?|duckdb)$")
_CHANGES = re.compile(  # words of SQL, and of pandas
    r"\b(?:insert|replace)\s+(?:or\s+\w+\s+)?into\b|\bupdate\s+\S+\s+set\b|\bdelete\s+from\b|\bcopy\s+\S+\s+(?:from|to)\b|"
    r"\b(?:create|drop|alter)\s+(?:\w+\s+){0,3}(?:table|index|view|trigger|schema|sequence)\b|"
    r"executemany|executescript|to_sql",
    re.IGNORECASE,
)
_RUNS = frozenset({"system", "popen", "run", "call", "check_call", "check_output", "Popen", "getoutput"})
_RUNNERS = frozenset({"os", "subprocess", "sp"})
_CHANGED_INTO = re.compile(r"\bcd\s+\S+")  # for the rest of that command alone
_FIELDS = re.compile(r"\{\w*(?::[^}]*)?\}|%[-+ 0-9.]*[a-z]")
_LONGEST = 4096  # characters of a path
_UNKNOWN = "$_"  # in a command: no place
_BY_THE_FIRST = re.compile(r"^connect$|TrainingArguments$")  # argument
_INTO = frozenset({"copy", "copy2", "copyfile", "copytree", "move", "rename", "replace", "symlink"})  # their last one
_ONLY_READS = re.compile(r"CheckpointReader|CheckpointLoader")
_READ_ONLY = frozenset({"r", "c"})  # of memmap
_ARGUMENT_WRITES = re.compile(
    r"^(?:out(?:put)?|log|logging|save|results?|work|run|exp(?:eriment)?|default_root)_?(?:dir|path|file|folder)\w*$|"
    r"^(?:checkpoint|ckpt)s?_?(?:dir|folder)\w*$|"  # a checkpoint's path is read: fit(model, ckpt_path="last.ckpt")
    r"^(?:dirpath|logdir|workdir|storage|storage_path|local_dir|out|output)$"
)
_READS = re.compile(r"load|read|restore|resume|from_|^get|exist|is_?file|is_?dir|glob|list|print|info|debug|warn|join")
_OPENS = frozenset({"open", "File", "fopen", "gzopen"})
_MADE = frozenset({"makedirs", "mkdir"})
_OF_OUTPUTS = re.compile(r"out|log|ckpt|checkpoint|result|save|model|exp|run|tmp", re.IGNORECASE)
_SAME = frozenset({"Path", "PurePath", "str", "abspath", "realpath", "fspath", "expanduser", "expandvars", "resolve"})
_SAME_TOO = frozenset({"absolute", "resolve", "expanduser", "normpath", "as_posix", "rstrip", "strip"})
_MEANT = {"home": "~", "gettempdir": "/tmp"}  # noqa: S108 - where programs go
_DEFINES = frozenset({"add_argument", "option", "Option", "DEFINE_string", "add_option", "argument"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceInPython:
    """A place that a line of a file writes to."""

    path: Path
    line: int
    place: str


def of_files(
    texts: Mapping[Path, str], *, options: Mapping[str, str], given: Collection[str], environ: Mapping[str, str]
) -> list[PlaceInPython]:
    """Return what the Python files among *texts* write to.

    *options* are settings of the program's own files that are places; *given* are names that the command line sets, of
    which no default counts.
    """
    shared = {key: place for key, place in options.items() if key not in given}
    reading = _Reading(shared=shared, given=frozenset(given), environ=environ)
    modules: dict[Path, _Module] = {}
    for path, text in texts.items():
        if path.suffix in (".py", ".ipynb"):
            with (
                suppress(SyntaxError, ValueError, RecursionError),
                catch_warnings(),
            ):  # of another Python: not looked at
                simplefilter("ignore")  # "\d" in a string, say
                modules[path] = _Module(ast.parse(text), has_changes=_CHANGES.search(text) is not None)
    for module in (*modules.values(), *modules.values()):  # once more, for names of modules that came later
        with suppress(RecursionError):
            reading.names_of(module)
    found: list[PlaceInPython] = []
    for path, module in modules.items():
        with suppress(RecursionError):  # an expression of a thousand terms, say
            found += [PlaceInPython(path=path, line=line, place=place) for line, place in reading.writes(module)]
    return found


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class _Module:
    """What of a module's syntax is looked at, in the order of the text; a call comes before its target."""

    def __init__(self, tree: ast.Module, *, has_changes: bool) -> None:
        self.has_changes = has_changes  # of databases; else those that it opens are only read
        self.outside: list[ast.AST] = []  # of functions: assignments and calls
        self.functions: list[tuple[_Function, list[ast.AST]]] = []  # each with its own assignments and calls
        self.settings: list[ast.AST] = []  # classes, dictionaries and calls, wherever they are
        self._sort(tree, self.outside)

    def _sort(self, node: ast.AST, own: list[ast.AST]) -> None:
        inside = own
        if isinstance(node, ast.For | ast.AsyncFor):
            own.append(node)  # its body knows what it goes through
        if isinstance(node, _Function):
            inside = []
            self.functions.append((node, inside))
            for child in (node.args, *getattr(node, "decorator_list", ())):
                self._sort(child, [])
            children = iter(node.body if isinstance(node.body, list) else [node.body])
        else:
            children = ast.iter_child_nodes(node)
        for child in children:
            self._sort(child, inside)
        if isinstance(node, ast.Call | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            own.append(node)
        if isinstance(node, ast.Call | ast.ClassDef | ast.Dict):
            self.settings.append(node)


_Names = dict[str, str | None]  # None: it is not known what it is


@dataclass(slots=True)
class _Reading:
    """What is known of names while modules are read: of attributes, keys and settings by their last name alone.

    What an attribute was last set to may be another object's; no argument that is called so takes it.
    """

    shared: dict[str, str]  # what settings say
    given: frozenset[str]
    environ: Mapping[str, str]
    has_changes: bool = True  # of databases, in the module that is read
    exported: _Names = field(default_factory=dict)  # what modules define, for others that import it
    attributes: _Names = field(default_factory=dict)

    def names_of(self, module: _Module) -> None:
        names: _Names = {}
        for node in module.outside:
            self._note(node, names)
        for node in module.settings:
            self._note_settings(node, names)
        self.exported |= {name: text for name, text in names.items() if _is_place(text)}

    def writes(self, module: _Module) -> Iterator[tuple[int, str]]:
        names: _Names = {}
        self.has_changes = module.has_changes
        for node in module.outside:  # as it stands there
            yield from self._written(node, [names])
            self._note(node, names)
        for function, nodes in module.functions:
            yield from self._of_function(function, nodes, names)

    def _of_function(
        self, function: _Function, nodes: Sequence[ast.AST], of_module: _Names
    ) -> Iterator[tuple[int, str]]:
        own: _Names = {}
        arguments = function.args
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults = dict(zip(reversed([each.arg for each in plain]), reversed(arguments.defaults), strict=False))
        defaults |= {
            each.arg: default
            for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        }
        for each in (*plain, *arguments.kwonlyargs):
            told = self._place(defaults[each.arg], [of_module]) if each.arg in defaults else None
            own[each.arg] = told or self.shared.get(each.arg)
        for node in nodes:
            yield from self._written(node, [own, of_module])
            self._note(node, own, [own, of_module])

    def _note(self, node: ast.AST, names: _Names, scopes: list[_Names] | None = None) -> None:
        """Note what an assignment makes of a name."""
        scopes = [names] if scopes is None else scopes
        if isinstance(node, ast.For | ast.AsyncFor):
            self._note_loop(node, names, scopes)
            return
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            both = ast.BinOp(left=ast.Name(id=node.target.id), op=node.op, right=node.value)
            names[node.target.id] = self._text(both, scopes)
            return
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            return
        for target in targets:
            if isinstance(target, ast.Name):
                text = self._text(value, scopes)
                names[target.id] = self._place(value, scopes) if _is_place(text) else text
            elif isinstance(target, ast.Tuple | ast.List):
                names |= dict.fromkeys(each.id for each in target.elts if isinstance(each, ast.Name))
            elif isinstance(target, ast.Attribute):
                self.attributes[target.attr] = self._place(value, scopes)

    def _note_loop(self, node: ast.For | ast.AsyncFor, names: _Names, scopes: list[_Names]) -> None:
        """Note the first value of what a loop goes through, where that is alike in all runs: a count, or words."""
        through, of = node.iter, node.target
        call = through if isinstance(through, ast.Call) else None
        name = "" if call is None else _called(call)
        parts = list(of.elts) if isinstance(of, ast.Tuple | ast.List) else [of]
        names |= dict.fromkeys(each.id for each in ast.walk(of) if isinstance(each, ast.Name))
        first: str | None = None
        if call is not None and name in ("enumerate", "range", "trange"):
            begins = call.args[0] if name != "enumerate" and len(call.args) > 1 else ast.Constant("0")
            first = self._text(begins, scopes)
        elif isinstance(through, ast.List | ast.Tuple) and through.elts:
            first = self._text(through.elts[0], scopes)
        if parts and isinstance(parts[0], ast.Name) and (name == "enumerate" or parts[0] is of):
            names[parts[0].id] = first

    def _note_settings(self, node: ast.AST, names: _Names) -> None:
        """Note defaults of arguments, fields of classes and keys of dictionaries."""
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.AnnAssign | ast.Assign):
                    target = each.target if isinstance(each, ast.AnnAssign) else each.targets[0]
                    if isinstance(target, ast.Name) and each.value is not None:
                        self._note_setting(target.id, each.value, names)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    self._note_setting(key.value, value, names)
        elif isinstance(node, ast.Call) and _called(node) in _DEFINES:
            self._note_default(node, names)

    def _note_default(self, node: ast.Call, names: _Names) -> None:
        """Note the default of ``add_argument("--out", default=...)``, and of what is alike."""
        said = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        value = next((each.value for each in node.keywords if each.arg == "default"), None)
        if value is None and _called(node) == "DEFINE_string" and len(node.args) > 1:
            value, said = node.args[1], said[:1]
        longest = max(said, key=lambda word: (word.startswith("--"), len(word)), default=None)
        if value is not None and longest is not None:
            self._note_setting(longest.lstrip("-").replace("-", "_"), value, names)

    def _note_setting(self, name: str, value: ast.expr, names: _Names) -> None:
        if name not in self.given and (place := self._place(value, [names])) is not None:
            self.shared.setdefault(name, place)

    def _place(self, node: ast.expr, scopes: list[_Names]) -> str | None:
        """Return the place that an expression is; None where it is none, or not known."""
        text = self._text(node, scopes)
        return None if text is None else place_in(text, most_general=True)

    def _text(self, node: ast.expr, scopes: list[_Names]) -> str | None:  # noqa: PLR0911 - one for each kind
        if isinstance(node, ast.Constant):
            is_whole = isinstance(node.value, int) and not isinstance(node.value, bool)
            return str(node.value) if is_whole or isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            known = next((scope for scope in scopes if node.id in scope), self.exported)
            return known.get(node.id)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, scopes)
        if isinstance(node, ast.BinOp):
            return self._of_operator(node, scopes)
        if isinstance(node, ast.BoolOp):
            return next(filter(None, (self._place(each, scopes) for each in node.values)), None)
        if isinstance(node, ast.Attribute):
            if node.attr == "parent" and (above := self._text(node.value, scopes)) is not None:
                return os.path.dirname(above)  # noqa: PTH120
            if node.attr in self.attributes:
                return self.attributes[node.attr]
            return self.shared.get(node.attr) or self.exported.get(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key = str(node.slice.value)
            return self._variable(key) if _ends_in(node.value, "environ") else self.shared.get(key)
        return self._of_call(node, scopes) if isinstance(node, ast.Call) else None

    def _of_operator(self, node: ast.BinOp, scopes: list[_Names]) -> str | None:
        if isinstance(node.op, ast.Mod):
            values = list(node.right.elts) if isinstance(node.right, ast.Tuple) else [node.right]
            return self._filled(node.left, values, scopes)
        left, right = self._text(node.left, scopes), self._text(node.right, scopes)
        if left is None or right is None or not isinstance(node.op, ast.Add | ast.Div):
            return None
        if len(left) + len(right) > _LONGEST:  # no place: a text that is doubled again and again, say
            return None
        return left + right if isinstance(node.op, ast.Add) else os.path.join(left, right)  # noqa: PTH118

    def _joined(self, node: ast.JoinedStr, scopes: list[_Names]) -> str | None:
        parts = [
            self._text(each.value if isinstance(each, ast.FormattedValue) else each, scopes) for each in node.values
        ]
        known = [part for part in parts if part is not None]
        return None if len(known) < len(parts) or sum(map(len, known)) > _LONGEST else "".join(known)

    def _filled(self, form: ast.expr, values: Sequence[ast.expr], scopes: list[_Names]) -> str | None:
        """Return a text with the fields of its *form* filled in; None where one is not known."""
        text, parts = self._text(form, scopes), [self._text(each, scopes) for each in values]
        known = [part for part in parts if part is not None]
        if text is None or len(known) < len(parts) or sum(map(len, known)) > _LONGEST:
            return None
        if len(_FIELDS.findall(text)) != len(known):
            return None
        filling = iter(known)
        return _FIELDS.sub(lambda _: next(filling), text)

    def _command(self, node: ast.expr, scopes: list[_Names]) -> str:
        """Return what a call such as `os.system` or `subprocess.run` starts, as a line of a shell; "" if not known."""
        if isinstance(node, ast.List | ast.Tuple):
            parts = [self._text(each, scopes) for each in node.elts]
            return " ".join(_UNKNOWN if part is None or not part or " " in part else part for part in parts)
        return _CHANGED_INTO.sub("", self._text(node, scopes) or "")

    def _of_call(self, node: ast.Call, scopes: list[_Names]) -> str | None:
        name = _called(node)
        of = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in _MEANT:
            return _MEANT[name]
        if name == "getenv" or (name == "get" and _ends_in(of, "environ")):
            told = self._text(node.args[0], scopes) if node.args else None
            value = None if told is None else self._variable(told)
            return self._text(node.args[1], scopes) if value is None and len(node.args) > 1 else value
        if name in ("join", "joinpath") or (name in _SAME and node.args):
            first = [] if of is None or name in _SAME or _ends_in(of, "path") else [of]
            parts = [self._text(each, scopes) for each in (*first, *node.args)]
            known = [part for part in parts if part is not None]
            return os.path.join(*known) if known and len(known) == len(parts) else None  # noqa: PTH118
        if of is not None and (name in _SAME_TOO or (name == "format" and not node.keywords)):
            return self._filled(of, node.args, scopes) if name == "format" else self._text(of, scopes)
        if name == "dirname" and node.args and (below := self._text(node.args[0], scopes)) is not None:
            return os.path.dirname(below)  # noqa: PTH120
        return None

    def _variable(self, name: str) -> str | None:
        return "~" if name == "HOME" else None if name in OF_SHELLS else self.environ.get(name)

    def _written(self, node: ast.AST, scopes: list[_Names]) -> Iterator[tuple[int, str]]:
        if not isinstance(node, ast.Call) or _is_no_writer(node):
            return
        if _called(node) == "connect" and not self.has_changes:
            return
        if _called(node) in _RUNS and node.args and _starts_programs(node):
            in_shell = of_shell(self._command(node.args[0], scopes), self.environ)
            yield from ((node.lineno, each) for _, each in in_shell)
        for each in self._targets(node):
            text = self._text(each, scopes)
            place = None if text is None else place_in(text)
            if place is not None and (_called(node) not in _MADE or _OF_OUTPUTS.search(place)):
                yield node.lineno, place

    def _targets(self, node: ast.Call) -> Iterator[ast.expr]:
        """Yield the arguments of a call that say where it writes."""
        name = _called(node)
        of = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in _OPENS:
            mode = next((each.value for each in node.keywords if each.arg == "mode"), None)
            said = [*node.args[:2], *([mode] if mode is not None else [])]
            modes = [each.value for each in said if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if any(re.fullmatch(r"[rbt]*[wax+][wabt+]*", each) for each in modes):
                yield from [*node.args[:1], *([of] if of is not None else [])]
            elif _ends_in(of, "shelve") or _ends_in(of, "dbm"):
                yield from node.args[:1]
            return
        if name in _MADE:
            yield from [*node.args[:1], *([of] if of is not None else [])]
        elif name in _INTO or _BY_THE_FIRST.search(name):
            yield from (node.args[1:2] if name in _INTO else []) or node.args[:1]
        elif _WRITES.search(name):
            yield from [*node.args, *(each.value for each in node.keywords)]
            if of is not None and re.match("write|touch", name):
                yield of
            return
        if _READS.search(name) is None and name not in _DEFINES:
            yield from (each.value for each in node.keywords if each.arg and _ARGUMENT_WRITES.match(each.arg))
            if name == "basicConfig":
                yield from (each.value for each in node.keywords if each.arg == "filename")


def _called(node: ast.Call) -> str:
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _is_place(text: str | None) -> bool:
    return text is not None and place_in(text, most_general=True) is not None


def _starts_programs(node: ast.Call) -> bool:
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    return of is None or any(_ends_in(of, name) for name in _RUNNERS)


def _is_no_writer(node: ast.Call) -> bool:
    """Tell whether a call is named as what writes and does not: ``name.replace("/images/", "/labels/")``, say."""
    name, of = _called(node), node.func.value if isinstance(node.func, ast.Attribute) else None
    if name == "replace":
        return len(node.args) > 1 and not _ends_in(of, "os")
    if name == "connect":
        path = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
        is_database = any(_ends_in(of, each) for each in _DATABASES) or (
            of is None and _OF_A_DATABASE.search(str(path)) is not None
        )
        return not is_database or any(each.arg == "read_only" for each in node.keywords)
    said = (*node.args, *(each.value for each in node.keywords))
    modes = {each.value for each in said if isinstance(each, ast.Constant)}
    return _ONLY_READS.search(name) is not None or (name == "memmap" and not _READ_ONLY.isdisjoint(modes))


def _ends_in(node: ast.expr | None, name: str) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == name) or (isinstance(node, ast.Name) and node.id == name)
