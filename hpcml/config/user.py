"""Preferences of the user and of the project, for all runs: the accounts that jobs are charged to, and a budget.

Two files are read: hpcml.yaml of the project, and config.yaml of the user (`user_file`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from hpcml.config.compose import Composed
from hpcml.config.unreadable import why_unreadable
from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster
from hpcml.model.hours import Budget

PROJECT_FILE = "hpcml.yaml"
Ask = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """The settings of one preferences file.

    Names of clusters are those to type, as in ``+cluster=NAME``.

    >>> Preferences(account="abc", accounts={"alpha": "xyz"}).account_for("alpha")
    'xyz'
    """

    account: str | None = None
    accounts: Mapping[str, str] = field(default_factory=dict)  # by cluster
    budget: Budget | None = None  # of all runs of a home

    def account_for(self, cluster: str) -> str | None:
        """Return the account for *cluster*: the one given for it, else the one for all clusters, else None."""
        return self.accounts.get(cluster, self.account)


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the user's own file, which need not exist; None without XDG_CONFIG_HOME and HOME.

    By the XDG Base Directory Specification: $XDG_CONFIG_HOME/hpcml/config.yaml, else ~/.config/hpcml/config.yaml.
    """
    if environ.get("XDG_CONFIG_HOME"):
        return Path(environ["XDG_CONFIG_HOME"]) / "hpcml" / "config.yaml"
    return Path(environ["HOME"]) / ".config" / "hpcml" / "config.yaml" if environ.get("HOME") else None


def read_preferences(path: Path) -> Preferences:
    """Return the preferences in *path*, empty where it does not exist; raise `ConfigError` for a bad file.

    Refused are a file that is no YAML or cannot be read, an unknown key, and an account that is neither text nor a
    number. A number as an account becomes its text.
    """
    raw = _read(path)
    if unknown := sorted(set(raw) - {"account", "accounts", "budget"}):
        raise ConfigError(f"{path}: unknown key {unknown[0]}: account, accounts and budget are known")
    accounts = raw.get("accounts") or {}
    if not isinstance(accounts, dict):
        raise ConfigError(f"{path}: accounts must be a list of lines 'cluster: account'")
    of_clusters = {f"accounts.{cluster}": account for cluster, account in accounts.items()}
    given = {"account": raw["account"]} if "account" in raw else {}
    for name, account in {**given, **of_clusters}.items():
        if not _is_account(account):
            what = "is empty" if account in (None, "") else f"is {account!r}"
            raise ConfigError(f"{path}: {name} {what}: write an account, which is one word, or take the line out")
    return Preferences(
        account=str(raw["account"]) if given else None,
        accounts={str(cluster): str(account) for cluster, account in accounts.items()},
        budget=Budget.parse(str(raw["budget"]), field=f"{path}: budget") if "budget" in raw else None,
    )


def _is_account(account: object) -> bool:
    return isinstance(account, str | int) and not isinstance(account, bool) and len(str(account).split()) == 1


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(why_unreadable(path, error)) from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold lines 'key: value'")
    return raw


def with_accounts(
    points: Sequence[Composed], environ: Mapping[str, str], project: Path, *, ask: Ask, placeholder: str | None = None
) -> list[Composed]:
    """Return *points* in their order, with an account for every run whose site charges one and that names none.

    The account is the first of: HPCML_ACCOUNT, `accounts` in the project's hpcml.yaml, the same in the user's
    configuration file, *placeholder* (of dry runs), and the answer of *ask*, which gets the question as text. A site is
    asked about once, however many runs go there.

    Raises `ConfigError` where none of them has an account; *ask* returns None where nobody can be asked (no terminal).
    """
    found: dict[str, str] = {}
    charged = []
    for point in points:
        run, site = point.run, point.run.cluster
        if site.account_required and run.resources.account is None:
            if site.name not in found:
                known = known_account(site, environ, project) or placeholder
                found[site.name] = known or _asked(site, environ, ask)
            run = replace(run, resources=replace(run.resources, account=found[site.name]))
        charged.append(replace(point, run=run))
    return charged


def known_account(site: Cluster, environ: Mapping[str, str], project: Path) -> str | None:
    """Return the account for *site* that was configured before; None where there is none.

    HPCML_ACCOUNT holds for every site and comes first; then hpcml.yaml in *project*, then the user's configuration
    file. `hpcml doctor` calls this too, to report a missing account before a submission does.
    """
    if environ.get("HPCML_ACCOUNT"):
        return environ["HPCML_ACCOUNT"]
    accounts = (each.account_for(site.name) for each in _preferences(environ, project))
    return next((account for account in accounts if account), None)


def home_budget(environ: Mapping[str, str], project: Path) -> Budget | None:
    """Return the budget of all runs of a home: that of hpcml.yaml in *project*, else of the user's file, else None."""
    return next((each.budget for each in _preferences(environ, project) if each.budget is not None), None)


def _preferences(environ: Mapping[str, str], project: Path) -> Iterator[Preferences]:
    files = (project / PROJECT_FILE, user_file(environ))
    return (read_preferences(file) for file in files if file is not None)


def _asked(site: Cluster, environ: Mapping[str, str], ask: Ask) -> str:
    file = user_file(environ) or "your configuration"
    account = ask(f"Account to charge on {site.name} ('accounts: {{{site.name}: ...}}' in {file} sets it)")
    if not account:
        raise ConfigError(
            f"cluster={site.name} charges an account and none is given: set resources.account=..., HPCML_ACCOUNT, or "
            f"'accounts: {{{site.name}: ...}}' in {PROJECT_FILE} here or in {file}"
        )
    return account
