"""run.json as columns and settings of the store: `describe` reads and checks it."""

from __future__ import annotations

import functools
import hashlib
import json
import marshal
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from hpcml.codec import check_type, flatten
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.choices import Numerics
from hpcml.model.record_keys import unix_time
from hpcml.model.secrets import masked_settings
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import Manifest
from hpcml.runs.run_json import FORMAT
from hpcml.store.origin import home_mark_of
from hpcml.store.parse import storable, storable_json

_INTEGERS = 2**63  # what a database can keep
_UID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")
_UNPROVEN = "unproven"  # stands for the numerics of a program that may have computed in any way


class Settings(NamedTuple):
    """The settings of one config group, by whole key, and a digest of them, which tells whether two are alike."""

    digest: str
    content: Mapping[str, Any]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Settings:
        """Return *content*, sorted by key, with its digest."""
        ordered = dict(sorted(content.items()))
        return cls(hashlib.sha256(json.dumps(ordered).encode()).hexdigest(), ordered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A run as run.json describes it, before anything is known of its execution.

    `settings` are those of the run by config group; a setting outside of groups is a group of its own. Runs that have a
    group alike may share it. `facts` is what only run.json knows of the software. All texts are `storable`.
    """

    uid: str
    columns: Mapping[str, Any]  # of the table `run`
    planned: Mapping[str, str]  # numerics, scheduler: until a journal says otherwise
    settings: Mapping[str, Settings]
    tags: Sequence[str]
    facts: Mapping[str, str]  # code, packages: digests

    @property
    def epoch_ms(self) -> int:
        """The submission, in unix ms: where the store counts this run's milliseconds from."""
        return int(self.columns["epoch_ms"])

    def setting(self, key: str) -> Any:  # noqa: ANN401 - as run.json has it
        """Return the setting *key*; None where the run has none."""
        group = self.settings.get(key.partition(".")[0])
        return None if group is None else group.content.get(key)


def describe(run_dir: RunDir, homes: dict[Path, str | None] | None = None) -> Description:
    """Return the content of run.json; raises `HpcmlError` where it is damaged or lacks what the store needs.

    *homes* keeps the marks of folders for the next runs, where many are described at once: an empty dict at first.
    """
    path = run_dir.path if run_dir.path.is_absolute() else run_dir.path.absolute()
    raw = read_raw(run_dir.manifest)
    try:
        is_ours = raw.get("format") == FORMAT  # other tools' settings are what they are
        groups = _groups(raw)
        if is_ours:
            check_type(Manifest, _without(raw, groups), where="")
        run, provenance, uid = raw["run"], raw.get("provenance") or {}, _uid(str(raw["uid"]))
        submitted_at = _text(provenance.get("submitted_at"))
        columns = {
            "path": str(path),
            "home": marked(path, {} if homes is None else homes),
            "experiment": str(run["experiment"]),
            "name": _text(run.get("name")),
            "spec_hash": str(raw["spec_hash"]),
            "seed": _seed(run["seed"]),
            "precision": str(run["precision"]["name"]),
            "submitted_at": submitted_at,
            "submission": _text(provenance.get("submission")),
            "git_commit": _text(provenance.get("git_commit")),
            "git_dirty": dirty if isinstance(dirty := provenance.get("git_dirty"), bool) else None,
            "epoch_ms": _epoch_ms(submitted_at),
        }
        planned = {
            "numerics": storable(_expected_numerics(run, str(raw["plan"]["numerics"]))),
            "scheduler": storable(str(run["cluster"]["scheduler"])),
        }
        columns = {key: storable(value) if isinstance(value, str) else value for key, value in columns.items()}
        tags = [storable(str(tag)) for tag in run.get("tags") or ()]
        settings = _settings(run, groups, is_ours=is_ours)
    except KeyError as error:
        raise HpcmlError(f"{run_dir.manifest} lacks {error.args[0]!r}") from error
    except (ConfigError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise HpcmlError(f"{run_dir.manifest} is no run.json of hpcml: {error}") from error
    facts = _software(raw.get("plan"), provenance)
    return Description(uid=uid, columns=columns, planned=planned, settings=settings, tags=tags, facts=facts)


def marked(path: Path, homes: dict[Path, str | None]) -> str | None:
    """Return the mark of the folder of runs that *path*, a run directory, lies in; *homes* as in `describe`."""
    if (folder := path.parent) not in homes:
        homes[folder] = home_mark_of(path)
    return homes[folder]


def _settings(run: Mapping[str, Any], groups: Mapping[str, bytes], *, is_ours: bool) -> dict[str, Settings]:
    settings: dict[str, Settings] = {}
    for key, value in run.items():
        found = _of_group(key, groups[key], is_ours=is_ours) if key in groups else Settings.of(_flat({key: value}))
        name = storable(key).partition(".")[0]
        settings[name] = Settings.of({**settings[name].content, **found.content}) if name in settings else found
    return settings


def _groups(raw: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the config groups of run.json, each in a form that is the same for the same values of the same types."""
    run = raw.get("run")
    if not isinstance(run, dict):
        return {}
    return {key: marshal.dumps(value, 2) for key, value in run.items() if isinstance(value, dict)}


def _without(raw: Mapping[str, Any], groups: Mapping[str, object]) -> Mapping[str, Any]:
    if not groups:
        return raw
    return {**raw, "run": {key: value for key, value in raw["run"].items() if key not in groups}}


@functools.lru_cache(maxsize=1000)  # of a thousand runs most groups are alike
def _of_group(key: str, content: bytes, *, is_ours: bool) -> Settings:
    """Return the settings of the config group *key*; raise `ConfigError` for a value of a type that is not its."""
    value = marshal.loads(content)  # noqa: S302 - our own, made a moment ago
    if is_ours:
        check_type(Manifest, {"run": {key: value}}, where="")
    return Settings.of(_flat({key: value}))


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    return {storable(key): storable_json(value) for key, value in masked_settings(flatten(dict(run))).items()}


def _software(plan: object, provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of the code that was kept for the run, and of the list of packages that were installed.

    A run in an image has no ``packages``: those of the image count, and the digest of the image stands for them.
    """
    facts = {}
    if code := provenance.get("code"):
        facts["code"] = storable(PurePath(str(code)).name)  # the copies of code are named by their contents
    packages, image = provenance.get("packages"), plan.get("image") if isinstance(plan, dict) else None
    if isinstance(packages, dict) and packages and image is None:
        listed = json.dumps(packages, sort_keys=True).encode()
        facts["packages"] = hashlib.sha256(listed).hexdigest()[:16]
    return facts


def _seed(value: Any) -> int:  # noqa: ANN401
    seed = int(value)
    if abs(seed) >= _INTEGERS:
        raise ConfigError(f"run.seed={str(seed)[:60]} is too large")
    return seed


def _uid(word: str) -> str:
    if not _UID.fullmatch(word):
        raise ConfigError(f"uid={word[:60]!r} is no id of a run")
    return word


def _expected_numerics(run: Mapping[str, Any], planned: str) -> str:
    """Return the numerics to assume until the program reports them: native, emulated or unproven.

    A recipe emulates as planned. A user's own program may have ignored the plan: where the device lacks the units, it
    then computed in another precision, and only its own report could tell.
    """
    is_own_program = run["model"].get("recipe") is None
    return _UNPROVEN if is_own_program and planned == Numerics.emulated.name else planned


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _epoch_ms(submitted_at: str | None) -> int:
    """Return the time of submission in unix ms, 0 where it is not recorded: any fixed number will do."""
    if not submitted_at:
        return 0
    at = unix_time(submitted_at)
    if at is None:
        raise ConfigError(f"provenance.submitted_at={submitted_at[:60]!r} is no time (ISO 8601)")
    return round(at * 1000)
