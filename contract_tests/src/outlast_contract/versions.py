"""Versions of what took part in a run."""

import platform
import re
import secrets
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Final

import outlast
from outlast.contracts import DriverBackend
from outlast_contract.harness import Harness

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def versions() -> dict[str, str]:
    """Of Python, the platform, and the distributions of outlast that every run has."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("outlast", "outlast-contract"):
        found[name] = _version(name) or "not installed"
    return found


async def versions_of(harness: Harness, run: str) -> Mapping[str, str]:
    """Of the store of a harness and all that leads to it. It is opened once for that; so one that
    cannot be used is told of at once, and not by every check.

    ``run``: part of the name of the namespace.
    """
    namespace = f"oc-{run}-{secrets.token_hex(6)}"
    await harness.start()
    try:
        async with await harness.open(namespace) as backend:
            await backend.ping()
            found = await _store_versions(harness, backend)
        if not harness.is_temporary:
            await harness.wipe(namespace)
        return found
    finally:
        await harness.stop()


async def _store_versions(harness: Harness, backend: outlast.Backend) -> Mapping[str, str]:
    """Of the backend's distribution, of the client libraries that it has loaded, and of the server,
    as far as they are known.
    """
    inner = backend.driver if isinstance(backend, DriverBackend) else backend
    package = type(inner).__module__.partition(".")[0]
    found: dict[str, str] = {}
    # What is installed from its source tree has no list of packages.
    names = metadata.packages_distributions().get(package, [package.replace("_", "-")])
    for name in names:
        found |= {one: text for one in (name, *_libraries(name)) if (text := _version(one))}
    try:
        found |= await harness.versions()
    except Exception:  # noqa: BLE001 - a report without it is still a report
        found["server"] = "not known"
    return found


def _libraries(name: str) -> list[str]:
    """The distributions that one requires, if a package of theirs is loaded."""
    modules = {
        distribution.lower()
        for package, distributions in metadata.packages_distributions().items()
        if package in sys.modules
        for distribution in distributions
    }
    try:
        required = [_NAME.match(text) for text in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        return []
    names = dict.fromkeys(match[0].lower() for match in required if match)
    return [one for one in names if one in modules]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


__all__ = ["versions", "versions_of"]
