"""The `container` group of the configuration: which software environment the program runs in.

A run uses the environment of hpcml itself, an image that hpcml builds from a registry, or an image of the user's. All
fields are checked here, before anything is built; hpcml/images builds and starts the images. docs/containers.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum

from hpcml.errors import require
from hpcml.model.secrets import holds_key, is_secret_name


class ContainerKind(Enum):
    """Where the software environment of the run comes from."""

    none = "none"  # the environment hpcml itself runs in
    build = "build"  # an image that is built from one of a registry
    sif = "sif"  # an image file that is there
    sandbox = "sandbox"  # an image that is there, unpacked in a directory


class ContainerBuild(Enum):
    """Who builds an image that is not in the cache yet."""

    auto = "auto"  # the machine that submits
    never = "never"  # nobody: the run is refused


class ContainerGpu(Enum):
    """Which vendor's GPU driver is made available inside: Apptainer's ``--nv`` or ``--rocm``, or none."""

    auto = "auto"  # what the run's device needs
    nv = "nv"
    rocm = "rocm"
    none = "none"


class Compression(Enum):
    """How the file system of a built image is packed; its content is the same with each."""

    auto = "auto"  # zstd where the runtime can be told so, else gzip
    gzip = "gzip"  # what every runtime starts
    zstd = "zstd"
    lz4 = "lz4"
    xz = "xz"


RUNTIMES = ("apptainer", "singularity", "pyxis")  # hpcml/images/runtimes has an entry of each
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?([=/][A-Za-z0-9.+:~-]+)?")
_SECTION = re.compile(r"\s*%[A-Za-z]|\s*(bootstrap|from|stage|include)\s*:", re.IGNORECASE)
_TAKEN_IN = re.compile(r"(-r|--requirement|-c|--constraint)\s+\S")  # files, of which the content is taken
_URL_LOGIN = re.compile(r"https?://[^/\s]*@")
# What the words of `container` do not leave to chance, and what a list of processes must not show.
_TAKEN_OPTIONS = {
    **dict.fromkeys(("--env",), "set workload.env, or what only the image needs in container.environment"),
    **dict.fromkeys(("--bind", "-B", "--mount"), "set container.binds"),
    **dict.fromkeys(("--pwd", "--cwd"), "set workload.cwd"),
    **dict.fromkeys(("--nv", "--nvccli", "--rocm"), "set container.gpu"),
    **dict.fromkeys(("--writable-tmpfs",), "set container.writable_tmpfs"),
    **dict.fromkeys(("--docker-login", "--docker-username", "--docker-password"), "export NGC_API_KEY"),
}
_OF_AN_IMAGE_TO_BUILD = (
    "definition",
    "dockerfile",
    "context",
    "build_args",
    "target",
    "registry",
    "image",
    "tag",
    "digest",
    "pip",
    "apt",
    "post",
    "environment",
    "labels",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A path of the host that is visible inside the container, with all that lies below it.

    Both paths are absolute. Without *read_only* the program may write there, as far as the user may.
    """

    source: str
    destination: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The software environment of the program; `none` is the environment that hpcml itself runs in.

    Raises `ConfigError` for values that do not fit the kind, would add lines to the image's definition, would put
    secrets into the image, or repeat an option that another field sets.
    """

    name: str
    kind: ContainerKind = ContainerKind.none
    registry: str | None = None  # nvcr.io
    image: str | None = None  # nvidia/pytorch
    tag: str | None = None  # None: the newest that fits the cluster's GPU and driver, where hpcml knows the image
    digest: str | None = None  # sha256:...: this very image, whatever the tag means
    pip: list[str] = field(default_factory=list)  # as pip takes them: timm==1.0.9
    apt: list[str] = field(default_factory=list)
    post: list[str] = field(default_factory=list)  # shell lines of the build, after the packages
    environment: dict[str, str] = field(default_factory=dict)  # of the image, readable by everybody who has it
    labels: dict[str, str] = field(default_factory=dict)
    path: str | None = None  # of an image that is there; of an image to build, its base
    definition: str | None = None  # of Apptainer's (.def), that an image is built from
    dockerfile: str | None = None  # that an image is built after
    context: str | None = None  # the folder that the Dockerfile copies from; None: its own
    build_args: dict[str, str] = field(default_factory=dict)  # values for its ARG, or {{ }} of the definition
    target: str | None = None  # the stage of it that is wanted; None: the last
    build: ContainerBuild = ContainerBuild.auto
    compression: Compression = Compression.auto
    build_processors: int | None = None  # None: four on a login node, elsewhere all
    runtime: str | None = None  # one of RUNTIMES; None: the cluster profile's, else what is found
    binds: list[str] = field(default_factory=list)  # SOURCE[:DESTINATION[:ro]], as on the runtime's command line
    options: list[str] = field(default_factory=list)  # anything else for `exec`: --no-home
    writable_tmpfs: bool = False  # what is written into the image lives in memory until the run ends
    gpu: ContainerGpu = ContainerGpu.auto

    def __post_init__(self) -> None:
        for name, value in self._texts():
            require(
                not breaks_line(value), f"container.{name} holds a line break: it would add lines to the definition"
            )
        self._check_kind()
        self._check_image()
        self._check_build()
        require(
            self.runtime in (None, *RUNTIMES),
            f"container.runtime={self.runtime}: choose {', '.join(RUNTIMES)}",
        )
        count = self.build_processors
        require(count is None or count >= 1, f"container.build_processors={count} must be at least 1")
        self.all_binds()
        _check_options(self.options)

    def all_binds(self) -> list[Bind]:
        """Return the binds, parsed; raise `ConfigError` where one is malformed.

        >>> Container(name="x", binds=["/data:/mnt:ro"]).all_binds()
        [Bind(source='/data', destination='/mnt', read_only=True)]
        """
        return [_parse_bind(words) for words in self.binds]

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Yield every text but the shell lines of the build, which may be several in one."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                yield each.name, value
            elif isinstance(value, list) and each.name != "post":
                yield from ((each.name, item) for item in value)
            elif isinstance(value, dict):
                yield from (
                    (f"{each.name}.{key.splitlines()[0] if key else ''}", key + item) for key, item in value.items()
                )

    def _check_kind(self) -> None:
        """Raise `ConfigError` for fields that belong to another kind, and for a missing path, registry or image."""
        builds = self.kind is ContainerKind.build
        given = [name for name in _OF_AN_IMAGE_TO_BUILD if getattr(self, name)]
        of_file = next((name for name in ("definition", "dockerfile") if name in given), None)
        require(
            builds or not given,
            f"container.{'/'.join(given[:1])} is of an image to build, and container={self.name} is none: choose "
            + (
                f"+container={of_file}"
                if of_file
                else "+container=ngc_pytorch, or set workload.env for what a run needs"
            ),
        )
        if self.kind in (ContainerKind.sif, ContainerKind.sandbox):
            what = "image.sif" if self.kind is ContainerKind.sif else "directory"
            require(self.path is not None, f"container={self.name} needs container.path=/where/the/{what} is")
        elif builds:
            self._check_base()
        else:
            require(
                self.path is None, f"container.path={self.path}: container={self.name} takes none: choose container=sif"
            )
        for name in ("path", "definition", "dockerfile", "context"):
            value = getattr(self, name)
            is_file = value is None or "://" not in value
            hint = instead_of(value or "") if name == "path" else "download it"
            require(is_file, f"container.{name}={value} is no file: {hint}")
            require(
                value is None or value.startswith("/"),
                f"container.{name}={value} must be absolute: the run starts elsewhere",
            )

    def _check_base(self) -> None:
        """Raise `ConfigError` unless an image to build has one base: of a registry, on this machine, or a file's."""
        in_registry = [name for name in ("registry", "image", "tag", "digest") if getattr(self, name) is not None]
        of_files = [name for name in ("path", "definition", "dockerfile") if getattr(self, name) is not None]
        bases = [f"container.{name}={getattr(self, name)}" for name in (*in_registry[:1], *of_files)]
        require(
            len(bases) < 2,
            f"{' and '.join(bases)}: an image is built upon one base, and container={self.name} would have several: "
            "leave others out; of files choose container=local, definition or dockerfile, or to build nothing sif",
        )
        of_both = () if self.definition is not None else ("build_args",)
        of_dockerfile = next((name for name in ("context", "target", *of_both) if getattr(self, name)), None)
        require(
            self.dockerfile is not None or of_dockerfile is None,
            f"container.{of_dockerfile} is of a Dockerfile: set container.dockerfile=/where/it/is",
        )
        if of_files:
            return
        needs = {
            "local": "path=/where/the/base is (a SIF or a sandbox)",
            "definition": "definition=/where/it/is",
            "dockerfile": "dockerfile=/where/it/is",
        }
        require(
            self.name not in needs or bool(in_registry), f"container={self.name} needs container.{needs.get(self.name)}"
        )
        missing = next((name for name in ("registry", "image") if not getattr(self, name)), None)
        example = "nvcr.io or docker.io" if missing == "registry" else "nvidia/pytorch"
        require(missing is None, f"container={self.name} is built: set container.{missing}={example}")

    def _check_image(self) -> None:
        tag, digest = self.tag, self.digest
        require(tag is None or _TAG.fullmatch(tag) is not None, f"container.tag={tag!r} is no tag: write 24.12-py3")
        require(
            digest is None or _DIGEST.fullmatch(digest) is not None,
            f"container.digest={digest!r}: write sha256: and 64 hexadecimal digits",
        )
        for name, value in (("registry", self.registry), ("image", self.image)):
            require(value is None or not re.search(r"\s|@", value), f"container.{name}={value!r} holds a space or an @")
        named = (self.image or "").rpartition("://")[2]
        is_alone = named == self.image and ":" not in named.rpartition("/")[2]
        has_registry = self.registry in (None, "docker.io") and re.match(r"[^/]*[.:][^/]*/", named) is not None
        require(
            self.image is None or (is_alone and not has_registry),
            f"container.image={self.image} names more than the image: write {_apart(named, self.tag)}",
        )
        require(
            not named.startswith(f"{self.registry}/"),
            f"container.image={self.image} names its registry again: write container.image="
            f"{named.removeprefix(f'{self.registry}/')}",
        )

    def _check_build(self) -> None:
        """Raise `ConfigError` for packages, shell lines or variables that would change more than they should.

        A shell line that looks like a section's head would begin a new section of the definition; a login or secret
        would be readable by everybody who has the image.
        """
        for word in self.apt:
            require(_APT.fullmatch(word) is not None, f"container.apt: {word!r} is no package: write git or git=1:2.39")
        for word in self.pip:
            require(word.strip() != "", "container.pip holds an empty word")
            require(
                not word.startswith("-") or " " not in word or _TAKEN_IN.match(word) is not None,
                f"container.pip: {word!r} is two words for pip: write --option=value",
            )
            require(
                not holds_login(word),
                "container.pip holds a URL with a login, which everybody who has the image could read",
            )
        for line in "\n".join(self.post).splitlines():
            require(not begins_section(line), f"container.post: {line.strip()!r} would begin another section")
        variables = [("environment", *pair) for pair in self.environment.items()]
        for field_name, name, value in [*variables, *(("build_args", *pair) for pair in self.build_args.items())]:
            require(_VARIABLE.fullmatch(name) is not None, f"container.{field_name}: {name!r} is no variable's name")
            require(
                not is_secret_name(name) and not holds_key(value),
                f"container.{field_name}.{name} looks like a secret, which everybody who has the image could read: "
                "keep it in a private file and set container.options=[--env-file=/that/file]",
            )


def begins_section(line: str) -> bool:
    """Tell whether a line of shell would begin another section or stage of a definition."""
    return _SECTION.match(line) is not None


def holds_login(words: str) -> bool:
    """Tell whether there is a URL with a login in *words*, which everybody with the image could read."""
    return _URL_LOGIN.search(words) is not None


def breaks_line(value: str) -> bool:
    """Tell whether *value* would end its line in the definition: it has a line break or a null character."""
    return "\0" in value or len(value.splitlines()) > 1 or value != value.rstrip("\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")


def instead_of(url: str) -> str:
    """Return what to do in place of giving the address of an image as a file."""
    kind, _, name = url.partition("://")
    pulled = f"apptainer pull image.sif {url}, then container=sif container.path=/where/it/is/image.sif"
    return f"write container=docker {_apart(name)}" if kind == "docker" else pulled


def _apart(name: str, tag: str | None = None) -> str:
    """Return the settings that *name* means, as docker pull takes it; without a tag in it *tag* is."""
    has_tag = ":" in name.rpartition("/")[2]
    image, _, tag = name.rpartition(":") if has_tag else (name, "", tag or "latest")
    host, _, rest = image.partition("/")
    registry = f"container.registry={host} " if rest and set(host) & set(".:") else ""
    return f"{registry}container.image={rest if registry else image} container.tag={tag}"


def _parse_bind(words: str) -> Bind:
    """Return the bind that SOURCE[:DESTINATION[:ro|rw]] means; without a destination it is the source's own path."""
    parts = words.split(":")
    source, destination = parts[0], parts[1] if len(parts) > 1 else parts[0]
    mode = parts[2] if len(parts) > 2 else "rw"
    example = "write /source, /source:/inside or /source:/inside:ro"
    require(len(parts) <= 3, f"container.binds: {words!r} has more than two colons: {example}")
    for path in (source, destination):
        require(path.startswith("/"), f"container.binds: {path!r} in {words!r} is no absolute path: {example}")
        require(".." not in path.split("/"), f"container.binds: {words!r} goes up: {example}")
    require(destination.rstrip("/") != "", f"container.binds: {words!r} would hide the whole image: {example}")
    require(mode in ("ro", "rw"), f"container.binds: {mode!r} in {words!r}: choose ro or rw")
    return Bind(source=source, destination=destination, read_only=mode == "ro")


def _check_options(options: Sequence[str]) -> None:
    """Raise `ConfigError` for an option that another field of the configuration sets, or that is none."""
    require(
        not options or options[0].startswith("-"),
        f"container.options: {options[0] if options else ''!r} is no option: the first must begin with a dash",
    )
    for word in options:
        require(word.strip("-") != "", f"container.options: {word!r} is no option")
        name = word.partition("=")[0]
        taken = _TAKEN_OPTIONS.get(name) or (_TAKEN_OPTIONS["-B"] if word.startswith("-B") else None)
        require(taken is None, f"container.options: {name}: {taken}")
