"""Asks container registries for the digest and the size of an image, over the HTTP API that all of them have.

The protocol: https://distribution.github.io/distribution/spec/api/ and .../spec/auth/token/ (read for version 2.8).
Nothing is downloaded but manifests, of some kilobytes; Apptainer itself fetches the layers. A key is sent only over
TLS, only to the host that it belongs to, and to the server for tokens that this host names.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import ipaddress
import json
import platform
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from hpcml.errors import ConfigError, ImageError, require
from hpcml.images.logins import login_for, takes_the_ngc_key
from hpcml.model.container import Container

_TIMEOUT_S = 30
_MOST_BYTES = 8 << 20  # of a manifest or a token: real ones have some kilobytes
_ACCEPT = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # uname's word -> what registries call it
_HUB = "docker.io"
_HUB_API = "registry-1.docker.io"
_NGC = "nvcr.io"
_NAME = re.compile(r"[a-z0-9][a-z0-9._/-]*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:\d+)?")


def host_architecture() -> str:
    """Return the architecture of this machine, as registries call it: amd64 or arm64.

    Another machine has the name that uname gives it.
    """
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


class UnreachableError(ImageError):
    """A registry could not be asked, so that it is not known what it has.

    `hpcml run --dry-run` goes on then, and shows the path of the image without its key.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The name of an image in a registry; raises `ConfigError` where a part of it is malformed or missing."""

    host: str  # nvcr.io, 127.0.0.1:5000
    name: str  # nvidia/pytorch
    tag: str | None
    digest: str | None = None  # what the user has pinned
    plain_http: bool = False

    def __post_init__(self) -> None:
        require(_HOST.fullmatch(self.host) is not None, f"container.registry={self.host!r} is no host: write nvcr.io")
        require(_NAME.fullmatch(self.name) is not None, f"container.image={self.name!r}: write it as nvidia/pytorch")
        require(
            self.tag is not None or self.digest is not None, "container.tag is not set: write container.tag=24.12-py3"
        )

    @classmethod
    def of(cls, container: Container) -> Reference:
        """Return the base image of *container*; a registry written as http://HOST is used without TLS.

        Without a registry it is Docker Hub, where a name without a slash means ``library/NAME``. Raises `ConfigError`
        where no image is named or a part is malformed.
        """
        if container.image is None:
            raise ConfigError(f"container={container.name} names no image: set container.image=nvidia/pytorch")
        registry = container.registry or _HUB
        scheme, separator, rest = registry.rpartition("://")
        require(
            not separator or scheme in ("http", "https"), f"container.registry={registry}: write https:// or http://"
        )
        name = f"library/{container.image}" if registry == _HUB and "/" not in container.image else container.image
        return cls(
            host=rest.rstrip("/"),
            name=name,
            tag=container.tag,
            digest=container.digest,
            plain_http=scheme == "http",
        )

    @classmethod
    def parse(cls, written: str) -> Reference:
        """Return what ``From: NAME`` of a definition means, read as Docker does: without a host it is Docker Hub.

        >>> Reference.parse("alpine").for_people
        'docker.io/library/alpine:latest'
        """
        first, slash, rest = written.partition("/")
        host, name = (first, rest) if slash and (first == "localhost" or set(first) & set(".:")) else (_HUB, written)
        image, _, tag = name.rpartition(":") if ":" in name else (name, "", "latest")
        return cls(host=host, name=f"library/{image}" if host == _HUB and "/" not in image else image, tag=tag)

    @property
    def host_and_name(self) -> str:
        """The image without tag or digest: nvcr.io/nvidia/pytorch."""
        return f"{self.host}/{self.name}"

    @property
    def for_people(self) -> str:
        """The image as people write it: nvcr.io/nvidia/pytorch:24.12-py3."""
        return f"{self.host_and_name}:{self.tag}" if self.tag else f"{self.host_and_name}@{self.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What the registry has under a reference."""

    digest: str
    size_bytes: int  # of the compressed layers, which is what is downloaded


def ask(reference: Reference, *, environ: Mapping[str, str], architecture: str | None = None) -> Base:
    """Return digest and compressed size of *reference* for *architecture* (always Linux; None: this machine's).

    The digest is computed from what the registry sent; where the user has pinned one, it must be that. For an image of
    several architectures it is the digest of the list of them, which is the same for all. Logins are taken from
    *environ*, proxies from the environment of this process. Each request waits at most 30 seconds.

    Raises `ImageError`, in one line that says what to do: `UnreachableError` where the registry cannot be asked, else
    for an image that does not exist or needs a login; `ConfigError` for a registry without TLS on another host.
    """
    architecture = architecture or host_architecture()
    client = _Client(reference, environ)
    manifest, digest = client.fetch("manifests", reference.digest or reference.tag or "")
    if "manifests" in manifest:  # one image for each architecture, under one digest
        chosen = [entry["digest"] for entry in manifest["manifests"] if _is_for(entry, architecture)]
        if not chosen:
            raise ImageError(
                f"{reference.for_people} has no image for {architecture} (linux): choose another image or tag"
            )
        manifest, _ = client.fetch("manifests", str(chosen[0]))
    elif described := (manifest.get("config") or {}).get("digest"):
        made_for = client.fetch("blobs", str(described))[0].get("architecture") or architecture
        if made_for != architecture:
            raise ImageError(
                f"{reference.for_people} is for {made_for}, and this machine is {architecture}: "
                "choose another image or tag, or build where the processor is that one"
            )
    return Base(digest=digest, size_bytes=sum(int(layer.get("size", 0)) for layer in manifest.get("layers", [])))


def _is_for(entry: Mapping[str, Any], architecture: str) -> bool:
    platform = entry.get("platform") or {}
    return platform.get("architecture") == architecture and platform.get("os", "linux") == "linux"


class _Client:
    """The requests about one image to its registry, with the login that the registry asked for."""

    def __init__(self, reference: Reference, environ: Mapping[str, str]) -> None:
        self._reference = reference
        self._login = login_for(reference.host, environ)
        self._is_ngc = takes_the_ngc_key(reference.host, environ)
        self._open = urllib.request.build_opener(_StayEncrypted()).open
        self._authorization: str | None = None
        if reference.plain_http and not is_loopback(reference.host) and environ.get("HPCML_REGISTRY_HTTP") != "1":
            raise ConfigError(
                f"container.registry=http://{reference.host} would send keys and images in clear: use https://, "
                "or set HPCML_REGISTRY_HTTP=1 if your network allows that"
            )

    def fetch(self, kind: str, version: str) -> tuple[dict[str, Any], str]:
        """Return one of the "manifests" or "blobs" of the image as JSON, and its digest (SHA-256 of its bytes).

        A registry that wants a login says so with status 401 and a challenge; then the request is sent again, with it.
        """
        reference = self._reference
        host = _HUB_API if reference.host == _HUB else reference.host
        scheme = "http" if reference.plain_http else "https"
        url = f"{scheme}://{host}/v2/{reference.name}/{kind}/{version}"
        try:
            body = self._get(url, self._authorization)
        except urllib.error.HTTPError as refused:
            if refused.code != http.HTTPStatus.UNAUTHORIZED or self._authorization is not None:
                raise self._explain(refused) from refused
            self._authorization = self._authorize(refused.headers)
            return self.fetch(kind, version)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if version.startswith("sha256:") and digest != version:
            raise ImageError(f"{reference.for_people}: what the registry sent has not the digest {version}: try again")
        return self._as_json(body), digest

    def _as_json(self, body: bytes) -> dict[str, Any]:
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise UnreachableError(
                f"{self._reference.host} does not answer as a registry does (a login page of the network?): "
                "check container.registry and the proxy"
            )
        return value

    def _get(self, url: str, authorization: str | None) -> bytes:
        request = urllib.request.Request(url, headers={"Accept": _ACCEPT, "User-Agent": "hpcml"})  # noqa: S310 - http(s)
        if authorization:
            request.add_unredirected_header("Authorization", authorization)  # a blob store elsewhere must not see it
        try:
            with self._open(request, timeout=_TIMEOUT_S) as response:
                body: bytes = response.read(_MOST_BYTES)
        except urllib.error.HTTPError as refused:
            refused.close()  # its headers are enough
            raise
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(url, error) from error
        return body

    def _authorize(self, headers: Message) -> str:
        """Return the Authorization header that the registry asks for in WWW-Authenticate: Basic or Bearer."""
        kind, _, rest = headers.get("WWW-Authenticate", "").partition(" ")
        basic = None
        if self._login is not None:
            words = f"{self._login.user}:{self._login.password}".encode()
            basic = f"Basic {base64.b64encode(words).decode()}"
        if kind.lower() == "basic":
            if basic is None:
                raise self._login_needed()
            return basic
        if kind.lower() != "bearer":
            raise ImageError(f"{self._reference.host} asks for a login that hpcml does not know: {kind!r}")
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = asked.get("realm", "")
        if not realm.startswith(("https://", "http://") if self._reference.plain_http else "https://"):
            raise ImageError(f"{self._reference.host} sends us to {realm!r} for a token, which is not encrypted")
        query = {"scope": f"repository:{self._reference.name}:pull"}
        query |= {"service": asked["service"]} if "service" in asked else {}
        try:
            token = self._as_json(self._get(f"{realm}?{urllib.parse.urlencode(query)}", basic))
        except urllib.error.HTTPError as refused:
            raise self._explain(refused) from refused
        return f"Bearer {token.get('token') or token.get('access_token') or ''}"

    def _explain(self, refused: urllib.error.HTTPError) -> ImageError:
        reference = self._reference
        if refused.code in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            if self._login is None:
                return self._login_needed()
            return ImageError(
                f"{reference.host} refuses the login for {reference.name}: the key is wrong or expired, or may not "
                f"read that image; {self._how_to_log_in()}"
            )
        if refused.code == http.HTTPStatus.NOT_FOUND:
            listed = " (https://catalog.ngc.nvidia.com lists them)" if reference.host == _NGC else ""
            return ImageError(f"{reference.for_people} does not exist: check container.image and container.tag{listed}")
        if refused.code == http.HTTPStatus.TOO_MANY_REQUESTS:
            return UnreachableError(f"{reference.host} has had too many requests from here: log in, or try again later")
        return UnreachableError(
            f"{reference.host} answers {refused.code} {refused.reason} for {reference.name}: try later"
        )

    def _login_needed(self) -> ImageError:
        return ImageError(f"{self._reference.for_people} needs a login: {self._how_to_log_in()}")

    def _how_to_log_in(self) -> str:
        if self._is_ngc:
            return "set NGC_API_KEY to a key made on https://ngc.nvidia.com (docs/containers.md)"
        return (
            f"apptainer registry login docker://{self._reference.host}, or set APPTAINER_DOCKER_USERNAME and _PASSWORD"
        )

    def _unreachable(self, url: str, error: Exception) -> UnreachableError:
        found = error.reason if isinstance(error, urllib.error.URLError) else error
        reason = " ".join(str(getattr(found, "strerror", None) or found).split())
        parts = urllib.parse.urlsplit(url)
        host, proxy = str(parts.hostname), urllib.request.getproxies().get(parts.scheme)
        if proxy and not urllib.request.proxy_bypass(host):
            # http:// may be left out, as urllib lets it; never its password, which may have a / as it is
            shown = proxy.rpartition("//")[2].rpartition("@")[2].partition("/")[0]
            return UnreachableError(
                f"{host} cannot be reached through the proxy {shown} ({reason}): check {parts.scheme}_proxy"
            )
        return UnreachableError(
            f"{host} cannot be reached ({reason}): build where there is a network (a login node), set "
            "https_proxy, or bring the image with hpcml images import"
        )


class _StayEncrypted(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to http."""

    def redirect_request(  # urllib's signature
        self,
        req: urllib.request.Request,
        fp: Any,  # noqa: ANN401
        code: int,
        msg: str,
        headers: Any,  # noqa: ANN401
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the next request, or None to refuse."""
        if req.type == "https" and not newurl.startswith("https://"):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def is_loopback(host: str) -> bool:
    """Tell whether *host*, with a port or without, is this machine: its registries speak no TLS, as Docker has it."""
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"
