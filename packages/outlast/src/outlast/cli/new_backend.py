"""``outlast new-backend``: the project of a backend that is still to be written."""

import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Final

import outlast
from outlast.errors import ConfigurationError
from outlast.registry import EXTRAS

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_LONGEST: Final = 40
_FAMILY: Final = frozenset({"contract", "mongo", "redis", "s3", "sql"})
"""Names whose distributions are of the family; ``outlast-sql`` serves schemes of other names."""

_FILES: Final = {
    "pyproject.toml": "pyproject.toml.in",
    "README.md": "README.md.in",
    ".gitignore": "gitignore.in",
    ".github/workflows/ci.yml": "ci.yml.in",
    "src/@PACKAGE@/__init__.py": "init.py.in",
    "src/@PACKAGE@/_plugin.py": "_plugin.py.in",
    "src/@PACKAGE@/driver.py": "driver.py.in",
    "src/@PACKAGE@/py.typed": None,
    "tests/test_contract.py": "test_contract.py.in",
}
"""The files of a project, and the template of each."""


def write_project(name: str, folder: Path | None = None) -> Path:
    """Write the project of a backend called ``name``, and return its folder.

    Args:
        name: Of the backend, which is also its URL scheme: lower-case letters, digits and hyphens.
        folder: Where; ``outlast-NAME`` in the working directory by default.

    Raises:
        ConfigurationError: The name or the folder cannot be used; nothing was written.
    """
    _check_name(name)
    words = {
        "@NAME@": name,
        "@DISTRIBUTION@": f"outlast-{name}",
        "@PACKAGE@": f"outlast_{name.replace('-', '_')}",
        "@CLASS@": "".join(part.capitalize() for part in name.split("-")),
        "@VERSION@": outlast.__version__,
    }
    target = folder or Path(words["@DISTRIBUTION@"])
    try:
        target.mkdir()
    except FileExistsError:
        raise ConfigurationError(
            f"{target} exists already, and is left as it is; name another folder with --folder"
        ) from None
    except FileNotFoundError:
        raise ConfigurationError(f"{target} cannot be made: there is no {target.parent}") from None
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be made: {error.strerror}") from error
    try:
        for path, template in _FILES.items():
            place = target / _filled(path, words)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(_filled(_template(template), words), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}") from error
    return target


def _check_name(name: str) -> None:
    if name.startswith(("outlast-", "outlast_")):
        raise ConfigurationError(
            f"give the store's name alone, {name[8:]!r}: the project becomes outlast-{name[8:]}"
        )
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigurationError(
            f"{name!r:.60} cannot be the name of a backend: it becomes a URL scheme and the name "
            f"of a package, so give up to {_LONGEST} lower-case letters, digits and single "
            "hyphens, a letter first, such as nats or my-store"
        )
    owners = {
        scheme: plugin.source
        for plugin in outlast.installed_plugins()
        for info in plugin.backends
        for scheme in info.schemes
    }
    owner = owners.get(name) or ("outlast" if name in EXTRAS else None)
    if owner is not None:
        raise ConfigurationError(
            f"{name}:// URLs are served by {owner} already; choose another name"
        )
    if name in _FAMILY:
        raise ConfigurationError(f"outlast-{name} is a package of outlast; choose another name")


def _template(name: str | None) -> str:
    return "" if name is None else (files("outlast.cli") / "skeleton" / name).read_text("utf-8")


def _filled(text: str, words: dict[str, str]) -> str:
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


__all__ = ["write_project"]
