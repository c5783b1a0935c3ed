"""MLflow's own client, for a server, a database or a folder; what fails in it is one line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hpcml.errors import ConfigError, HpcmlError
from hpcml.interop.exported import needing
from hpcml.model.secrets import without_password

_AT_ONCE = 1000  # runs or experiments in one answer of MLflow's
_ALLOWED = "MLFLOW_ALLOW_FILE_STORE"  # without it, newer versions refuse a folder, with a page of text


def client_of(uri: str) -> Any:  # noqa: ANN401 - of a library without types
    """Return MLflow's client for *uri*, as MLflow takes it: ``http://host:5000``, ``sqlite:///mlflow.db``, a folder.

    Raises `ConfigError` where mlflow is missing, and errors of MLflow's own (`one_line`).
    """
    with needing("mlflow", extra="mlflow"):
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - an extra
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells on stderr how it makes its tables
    return MlflowClient(tracking_uri=uri)


@contextmanager
def one_line(uri: str, *, instead: str = "") -> Iterator[None]:
    """Turn an error of MLflow in the block into an `HpcmlError` of one line; our own bugs keep their traceback.

    Passwords are left out. Where MLflow refuses a folder, *instead* is said behind what would allow it.
    """
    with needing("mlflow", extra="mlflow"):
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - an extra
    try:
        yield
    except HpcmlError:
        raise
    except Exception as error:
        if not (isinstance(error, MlflowException | OSError | ImportError) or _is_a_librarys(error)):
            raise  # our own bug
        if _ALLOWED in str(error) and folder_of(uri) is not None:
            refusal = f"this MLflow keeps no runs in a folder unless {_ALLOWED}=true is set"
            raise ConfigError(f"{refusal}{instead}") from error
        text = " ".join(str(error).split())
        raise HpcmlError(f"MLflow at {without_password(uri)}: {without_password(text)}") from error


def all_pages(ask: Callable[..., Any]) -> Iterator[Any]:
    """Yield all that one of the client's searches finds; *ask* takes ``max_results`` and ``page_token``."""
    token: str | None = None
    while True:
        page = ask(max_results=_AT_ONCE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def folder_of(uri: str) -> Path | None:
    """Return the folder that *uri* names, None for a server or a database."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else uri)


def _is_a_librarys(error: Exception) -> bool:
    """Whether an error is of a library below MLflow, say its database's driver, that MLflow did not translate."""
    return type(error).__module__.partition(".")[0] in ("sqlalchemy", "alembic", "requests", "urllib3", "yaml")
