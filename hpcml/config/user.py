"""What a user or a project says once for all runs: accounts, for a start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcml.errors import ConfigError

PROJECT_FILE = "hpcml.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The settings of one file."""

    account: str | None = None
    accounts: Mapping[str, str] = field(default_factory=dict)  # by cluster

    def account_for(self, cluster: str) -> str | None:
        """Return the account for *cluster*: its own, else the one for all."""
        return self.accounts.get(cluster, self.account)


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Return where the user's own file is, or would be; None for a user without a home."""
    if environ.get("XDG_CONFIG_HOME"):
        return Path(environ["XDG_CONFIG_HOME"]) / "hpcml" / "config.yaml"
    return Path(environ["HOME"]) / ".config" / "hpcml" / "config.yaml" if environ.get("HOME") else None


def read_preferences(path: Path) -> Preferences:
    """Return what *path* says, nothing if it is not there; an unknown key or a broken file is a `ConfigError`."""
    raw = _read(path)
    if unknown := sorted(set(raw) - {"account", "accounts"}):
        raise ConfigError(f"{path}: unknown key {unknown[0]}: account and accounts are known")
    accounts = raw.get("accounts") or {}
    if not isinstance(accounts, dict):
        raise ConfigError(f"{path}: accounts must be a list of lines 'cluster: account'")
    for name, account in {"account": raw.get("account"), **accounts}.items():
        if account is not None and not isinstance(account, str | int):
            raise ConfigError(f"{path}: {name} must be one word, not {account!r}")
    return Preferences(
        account=None if raw.get("account") is None else str(raw["account"]),
        accounts={str(cluster): str(account) for cluster, account in accounts.items()},
    )


def remember_account(path: Path, cluster: str, account: str) -> None:
    """Add the account of *cluster* to *path*, keeping what is there."""
    raw = _read(path)
    raw["accounts"] = {**(raw.get("accounts") or {}), cluster: account}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold lines 'key: value'")
    return raw
