"""What the command was told to verify: a store by its URL, a server, or somebody's harness."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.errors import ConfigurationError
from outlast.url import redact
from outlast_contract.harness import Harness
from outlast_contract.servers import Server
from outlast_contract.stores import harness_for


@dataclass(frozen=True)
class Subject:
    """A store that is to be verified.

    Attributes:
        make_harness: Makes a harness of it.
        name: For reports.
        argument: What the command was given, to be given again; without secrets.
        secrets: What no report may show.
    """

    make_harness: Callable[[], Harness]
    name: str
    argument: str
    secrets: frozenset[str]

    @classmethod
    def of_url(cls, url: str) -> "Subject":
        """The store at a URL."""
        shown = redact(url)
        make = harness_for(url)
        return cls(make, shown, repr(shown), frozenset(_secrets(make())))

    @classmethod
    def of_server(cls, server: Server) -> "Subject":
        """A server that was started for it; for what kills one, others of its kind are."""
        open_by_url = harness_for(server.url, **server.options)

        def make() -> Harness:
            harness = open_by_url()
            harness.server_kind = server.kind
            return harness

        name = f"a server of its own ({server.kind})"
        return cls(make, name, f"--server {server.kind}", frozenset(_secrets(make())))

    @classmethod
    def of_harness(cls, name: str) -> "Subject":
        """The store of a harness, imported from here or from what is installed.

        Args:
            name: ``module:name`` of a class or function that makes harnesses.

        Raises:
            ConfigurationError: There is none of that name.
        """
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            raise ConfigurationError(f"--harness is written MODULE:NAME, not {name!r}")
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            make: Any = getattr(importlib.import_module(module), attribute)
            harness: object = make()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"--harness {name}: {reason}") from error
        if not isinstance(harness, Harness):
            raise ConfigurationError(
                f"--harness {name}: it makes no outlast_contract.Harness, but {harness!r:.60}"
            )
        return cls(make, name, f"--harness {name}", frozenset(_secrets(harness)))


def _secrets(harness: Harness) -> set[str]:
    """Of the store that a harness opens."""
    # What is shorter would blot out half of the report.
    return {text for text in harness.secrets() if len(text) >= 3}


__all__ = ["Subject"]
