"""The account that a site charges: said for this run, or once for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpcml.cluster import Cluster
from hpcml.config import user
from hpcml.config.compose import Composed
from hpcml.errors import ConfigError

Ask = Callable[[str], str | None]


def with_accounts(
    points: Sequence[Composed], environ: Mapping[str, str], project: Path, *, ask: Ask, placeholder: str | None = None
) -> list[Composed]:
    """Give an account to every run whose site wants one and that names none.

    It comes from HPCML_ACCOUNT, the project's hpcml.yaml, the user's configuration file, *placeholder*, or *ask*
    (None where nobody can be asked), in this order; an answer is remembered in the user's file. Else `ConfigError`.
    """
    found: dict[str, str] = {}
    given: list[Composed] = []
    for point in points:
        site, resources = point.run.cluster, point.run.resources
        if not site.account_required or resources.account is not None:
            given.append(point)
            continue
        if site.name not in found:
            found[site.name] = known_account(site, environ, project) or placeholder or _asked(site, environ, ask)
        run = replace(point.run, resources=replace(resources, account=found[site.name]))
        given.append(replace(point, run=run))
    return given


def known_account(site: Cluster, environ: Mapping[str, str], project: Path) -> str | None:
    """Return the account that was said once for all; None where it was not."""
    if environ.get("HPCML_ACCOUNT"):
        return environ["HPCML_ACCOUNT"]
    files = [project / user.PROJECT_FILE, user.user_file(environ)]
    accounts = (user.read_preferences(file).account_for(site.name) for file in files if file is not None)
    return next((account for account in accounts if account), None)


def _asked(site: Cluster, environ: Mapping[str, str], ask: Ask) -> str:
    file = user.user_file(environ)
    account = ask(f"Account to charge on {site.name}" + (f" (remembered in {file})" if file else ""))
    if not account:
        raise ConfigError(
            f"cluster={site.name} charges an account and none is given: set resources.account=..., HPCML_ACCOUNT, or "
            f"'accounts: {{{site.name}: ...}}' in {user.PROJECT_FILE} here or in {file or 'your configuration'}"
        )
    if file is not None:
        user.remember_account(file, site.name, account)
    return account
