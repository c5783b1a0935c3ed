"""The account that a site charges for a run: from settings and files, or asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpcml.config import user
from hpcml.config.compose import Composed
from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster

Ask = Callable[[str], str | None]


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
    """Return the account for *site* that was configured before; None where there is none.

    HPCML_ACCOUNT holds for every site and comes first; then hpcml.yaml in *project*, then the user's configuration
    file. `hpcml doctor` calls this too, to report a missing account before a submission does.
    """
    if environ.get("HPCML_ACCOUNT"):
        return environ["HPCML_ACCOUNT"]
    files = [project / user.PROJECT_FILE, user.user_file(environ)]
    accounts = (user.read_preferences(file).account_for(site.name) for file in files if file is not None)
    return next((account for account in accounts if account), None)


def _asked(site: Cluster, environ: Mapping[str, str], ask: Ask) -> str:
    file = user.user_file(environ) or "your configuration"
    account = ask(f"Account to charge on {site.name} ('accounts: {{{site.name}: ...}}' in {file} sets it)")
    if not account:
        raise ConfigError(
            f"cluster={site.name} charges an account and none is given: set resources.account=..., HPCML_ACCOUNT, or "
            f"'accounts: {{{site.name}: ...}}' in {user.PROJECT_FILE} here or in {file}"
        )
    return account
