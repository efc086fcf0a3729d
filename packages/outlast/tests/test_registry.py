"""Backends found by URL."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import outlast
from outlast import BackendInfo, ConfigurationError, InvalidIdError
from outlast.registry import Registry


class Point:
    """An entry point that loads what the test gives."""

    def __init__(self, name: str, plugin: object) -> None:
        self.name = self.value = name
        self.dist = None
        self._plugin = plugin

    def load(self) -> object:
        if isinstance(self._plugin, Exception):
            raise self._plugin
        return self._plugin


def plugin(*backends: BackendInfo) -> object:
    class Plugin:
        @outlast.hookimpl
        def outlast_backends(self) -> list[BackendInfo]:
            return list(backends)

    return Plugin()


def registry(**plugins: object) -> Registry:
    points: Sequence[Any] = [Point(name, found) for name, found in plugins.items()]
    return Registry(lambda: points)


NATS = BackendInfo(
    name="nats", schemes=("nats", "tls+x"), factory="m:f", summary="s", variants=("one", "two")
)


def test_a_scheme_is_found_with_and_without_a_variant() -> None:
    found = registry(a=plugin(NATS))
    assert found.find("nats") == found.find("nats+two") == found.find("tls+x") == NATS
    assert found.find("memory").name == "memory"


@pytest.mark.parametrize("scheme", ["nats+three", "nats+", "nats+one+two", "file+x", "memory+"])
def test_a_variant_that_a_backend_has_not_is_refused(scheme: str) -> None:
    known = r"nats://, nats\+one://, nats\+two://" if scheme[0] == "n" else "//"
    with pytest.raises(ConfigurationError, match=f"write .*{known}"):
        registry(a=plugin(NATS)).find(scheme)


def test_a_broken_plugin_breaks_no_other_and_shows_its_error() -> None:
    found = registry(bad=ImportError("no module named x"), dull=object(), good=plugin(NATS))
    assert found.find("nats") == NATS
    errors = {found.source: found.error for found in found.plugins() if found.error}
    assert errors["bad"] == "ImportError: no module named x"
    assert "no outlast_backends() hook" in errors["dull"]
    with pytest.raises(ConfigurationError, match="plugin bad failed: ImportError"):
        found.find("nosuch")


def test_a_plugin_that_answers_nonsense_is_broken() -> None:
    found = registry(bad=plugin("nonsense"))  # type: ignore[arg-type]
    assert [entry.error for entry in found.plugins() if entry.error]


def test_two_plugins_with_one_scheme_are_refused_by_name() -> None:
    other = BackendInfo(name="nats2", schemes=("nats",), factory="m:f")
    found = registry(one=plugin(NATS), two=plugin(other))
    with pytest.raises(ConfigurationError, match="'nats' of one and 'nats2' of two"):
        found.find("nats")


def test_entry_points_are_loaded_at_the_first_question_only() -> None:
    asked: list[int] = []

    def points() -> Sequence[importlib.metadata.EntryPoint]:
        asked.append(1)
        return ()

    found = Registry(points)
    assert not asked
    found.plugins()
    found.plugins()
    assert asked == [1]


def test_a_missing_package_is_named_with_its_install_line() -> None:
    with pytest.raises(ConfigurationError, match=r'pip install "outlast\[sqlite\]"'):
        registry().find("sqlite")


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("nosuch://x", {}, "no backend serves nosuch://"),
        ("no url", {}, "not a store URL"),
        ("memory://", {"colour": 1}, "colour"),
        ("memory://x?ttl=1", {}, "unknown option 'ttl'"),
        ("memory://x/y", {}, "must be memory:// or memory://name"),
        ("memory://", {"timeout": 0}, "timeout"),
        ("memory://", {"timeout": "soon"}, "timeout"),
        ("memory://", {"checkpoint_ttl": 5}, "checkpoint_ttl"),
    ],
)
def test_what_does_not_fit_is_a_configuration_error(url: str, options: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        outlast.open_backend(url, **options)


@pytest.mark.parametrize("namespace", ["", "x" * 513, 5])
def test_a_namespace_is_an_id(namespace: Any) -> None:
    with pytest.raises(InvalidIdError, match="namespace"):
        outlast.open_backend("memory://", namespace=namespace)


def test_importing_outlast_imports_no_driver_no_sdk_and_no_backend() -> None:
    code = (
        "import sys, outlast; loaded = {name.partition('.')[0] for name in sys.modules};"
        "unwanted = loaded & {'openai', 'anthropic', 'sqlalchemy', 'aiosqlite', 'redis', 'pymongo',"
        "'boto3', 'typer', 'rich', 'httpx', 'outlast_sql', 'outlast_contract'};"
        "unwanted |= {name for name in sys.modules if name.startswith(('outlast.backends.',"
        "'outlast.runtime', 'outlast.providers', 'outlast.cli'))};"
        "sys.exit(repr(unwanted) if unwanted else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["", 1, b"name"])
def test_a_memory_store_is_shared_under_a_text_only(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name must be a non-empty str or None"):
        outlast.MemoryBackend(name)
