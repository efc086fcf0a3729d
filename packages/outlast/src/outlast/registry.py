"""Backends found by URL: pluggy hooks, loaded on first use, one entry point at a time."""

import importlib
import inspect
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outlast.codec import Codec
from outlast.contracts import Backend, DriverBackend
from outlast.contracts.backend import check_timeout
from outlast.driver import Driver
from outlast.errors import ConfigurationError, OutlastError
from outlast.url import redact, scheme_of
from outlast.values import check_id

PROJECT: Final = "outlast"
"""Name of the entry-point group and of the pluggy project."""

# pluggy, and the metadata of distributions with it, are a third of what importing outlast would
# take. They come when the first backend is opened, or the first plugin is marked.
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import pluggy

    hookimpl: Final[pluggy.HookimplMarker] = pluggy.HookimplMarker(PROJECT)
    """Marks a plugin's ``outlast_backends``."""

EXTRAS: Final[dict[str, str]] = {
    "mariadb": "mysql",
    "mongodb": "mongodb",
    "mysql": "mysql",
    "postgresql": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "s3": "s3",
    "sqlite": "sqlite",
    "valkey": "redis",
    "valkeys": "redis",
}
"""The extra of each scheme that a package of the family serves."""


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin says of a backend, without importing its driver.

    Attributes:
        name: Of the backend, such as ``"nats"``.
        schemes: URL schemes, without their variants.
        factory: ``"module:attribute"`` of a callable ``(url, *, namespace, timeout, **options)``
            that returns a `Driver` or a `Backend` without I/O; what it does not know it refuses
            with `ConfigurationError`, or has no parameter for.
        summary: One line for people.
        variants: What may stand behind a scheme and a ``+``, such as a client library.
    """

    name: str
    schemes: tuple[str, ...]
    factory: str
    summary: str = ""
    variants: tuple[str, ...] = ()


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin as it was found.

    Attributes:
        source: The distribution that brings it, or ``"outlast"``.
        backends: What it offers.
        error: Why it could not be loaded; the others are not affected.
    """

    source: str
    backends: tuple[BackendInfo, ...] = ()
    error: str | None = None


_BUILT_IN: Final = (
    BackendInfo(
        name="memory",
        schemes=("memory",),
        factory="outlast.backends.memory:MemoryDriver.from_url",
        summary="in the process; memory://name is shared within it",
    ),
    BackendInfo(
        name="file",
        schemes=("file",),
        factory="outlast.backends.file:FileDriver.from_url",
        summary="a directory, shared by the processes of one host",
    ),
)
"""The backends of the core itself."""


class Registry:
    """The plugins of one environment."""

    def __init__(self, entry_points: Callable[[], Sequence["EntryPoint"]] | None = None) -> None:
        """Make a registry; nothing is loaded before it is asked.

        Args:
            entry_points: Finds the entry points; those of the group ``outlast`` by default.
        """
        self._entry_points = entry_points or _installed
        self._lock = threading.Lock()
        self._plugins: tuple[Plugin, ...] | None = None

    def plugins(self) -> tuple[Plugin, ...]:
        """All plugins, the broken ones with their error; loaded at the first call."""
        with self._lock:
            if self._plugins is None:
                self._plugins = tuple(self._load())
            return self._plugins

    def find(self, scheme: str) -> BackendInfo:
        """The backend that serves a URL scheme, with or without a variant.

        Raises:
            ConfigurationError: None does, or two do, or it has no such variant.
        """
        base, plus, variant = scheme.partition("+")
        found = [
            (plugin, info)
            for plugin in self.plugins()
            for info in plugin.backends
            if base in info.schemes or scheme in info.schemes
        ]
        if len(found) > 1:
            owners = " and ".join(f"{info.name!r} of {plugin.source}" for plugin, info in found)
            raise ConfigurationError(
                f"two backends serve {base}:// URLs: {owners}; uninstall one of them"
            )
        if found:
            info = found[0][1]
            if plus and scheme not in info.schemes and variant not in info.variants:
                known = ", ".join(f"{base}+{name}://" for name in info.variants)
                raise ConfigurationError(
                    f"no backend serves {scheme}:// URLs; write {base}://"
                    + (f", {known}" if known else "")
                )
            return info
        raise ConfigurationError(self._unknown(scheme, base))

    def _unknown(self, scheme: str, base: str) -> str:
        broken = [plugin for plugin in self.plugins() if plugin.error is not None]
        failures = "".join(f"; plugin {plugin.source} failed: {plugin.error}" for plugin in broken)
        if base in EXTRAS:
            return (
                f"{base}:// URLs need a package that is not installed: "
                f'pip install "outlast[{EXTRAS[base]}]"{failures}'
            )
        schemes = {
            known for plugin in self.plugins() for info in plugin.backends for known in info.schemes
        }
        known = ", ".join(f"{name}://" for name in sorted(schemes | set(EXTRAS)))
        return f"no backend serves {scheme}:// URLs; known: {known}{failures}"

    def _load(self) -> list[Plugin]:
        plugins = [Plugin(source="outlast", backends=_BUILT_IN)]
        seen: set[tuple[str, str]] = set()
        for entry_point in self._entry_points():
            identity = (entry_point.name, entry_point.value)
            if identity in seen:  # The same distribution found twice on the path.
                continue
            seen.add(identity)
            source = entry_point.dist.name if entry_point.dist is not None else entry_point.name
            try:
                plugin = entry_point.load()
            except Exception as error:  # noqa: BLE001 - a broken plugin never breaks the others
                plugins.append(Plugin(source=source, error=f"{type(error).__name__}: {error}"))
                continue
            plugins.append(_describe(source, plugin))
        return plugins


def _installed() -> "Sequence[EntryPoint]":
    from importlib.metadata import entry_points

    return tuple(entry_points(group=PROJECT))


def _describe(source: str, plugin: object) -> Plugin:
    """Ask one plugin, with a manager of its own, so that its failure is its own, too."""
    import pluggy

    class Hooks:
        @pluggy.HookspecMarker(PROJECT)
        def outlast_backends(self) -> list[BackendInfo]:  # type: ignore[empty-body]
            """Describe the backends of this plugin; called once, and imports no driver."""

    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin)
        manager.check_pending()
        backends = tuple(info for answer in manager.hook.outlast_backends() for info in answer)
        for info in backends:
            if not isinstance(info, BackendInfo):
                raise TypeError(
                    f"outlast_backends() returned {type(info).__name__}, not BackendInfo"
                )
    except Exception as error:  # noqa: BLE001 - as above
        return Plugin(source=source, error=f"{type(error).__name__}: {error}")
    if not backends:
        return Plugin(
            source=source, error="it implements no outlast_backends() hook, or offers nothing"
        )
    return Plugin(source=source, backends=backends)


_registry = Registry()


def installed_plugins() -> tuple[Plugin, ...]:
    """The plugins of this environment, broken ones with their error; loaded at the first call."""
    return _registry.plugins()


def open_backend(
    url: str,
    *,
    namespace: str = "default",
    setup: bool = True,
    strict: bool = False,
    codec: Codec | None = None,
    timeout: float = 10.0,
    checkpoint_ttl: timedelta | None = None,
    **options: Any,
) -> Backend:
    """Return the backend that a URL names; no I/O before ``async with`` or ``await
    backend.open()``.

    Args:
        url: Which store: ``memory://``, ``file:///dir``, ``sqlite:///file.db``, ...
        namespace: A world of its own within the store (I5); an id.
        setup: ``True``: create or migrate what the store needs; ``False``: only verify it.
        strict: Refuse settings of the store that lose data silently, instead of warning (D2).
        codec: How records become bytes.
        timeout: Seconds that one call may take, or one step of a call through many records (E6).
        checkpoint_ttl: Age beyond which a checkpoint reads as ``None`` (C6).
        options: Of the backend itself.

    Raises:
        ConfigurationError: No such scheme, a missing package, an option that the backend does not
            know.
        InvalidIdError: ``namespace`` is not an id.
    """
    info = _registry.find(scheme_of(url))
    check_id(namespace, "namespace")
    factory = _load_factory(info)
    above: dict[str, Any] = {
        "setup": setup,
        "strict": strict,
        "codec": codec,
        "checkpoint_ttl": checkpoint_ttl,
    }
    given = {"namespace": namespace, "timeout": check_timeout(timeout), **options}
    signature = inspect.signature(factory)
    # Only a factory of whole backends asks for what is otherwise done above the driver.
    given |= {name: value for name, value in above.items() if name in signature.parameters}
    try:
        signature.bind(url, **given)
    except TypeError as error:
        raise ConfigurationError(f"{info.name}: {error} (options of {redact(url)!r})") from None
    made = factory(url, **given)
    if isinstance(made, Driver):
        return DriverBackend(made, namespace=namespace, timeout=timeout, **above)
    if not isinstance(made, Backend):
        raise ConfigurationError(
            f"{info.factory} returned {type(made).__name__}, neither a Driver nor a Backend"
        )
    dropped = [name for name in above if name not in given and above[name] != _DEFAULTS[name]]
    if dropped:
        raise ConfigurationError(f"{info.name} does not know the options {', '.join(dropped)}")
    return made


_DEFAULTS: Final[dict[str, object]] = {
    "setup": True,
    "strict": False,
    "codec": None,
    "checkpoint_ttl": None,
}


def _load_factory(info: BackendInfo) -> Callable[..., object]:
    module_name, _, path = info.factory.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for part in path.split("."):
            target = getattr(target, part)
    except OutlastError:
        raise
    except Exception as error:
        hint = f'; pip install "outlast[{EXTRAS[info.name]}]"' if info.name in EXTRAS else ""
        raise ConfigurationError(
            f"the backend {info.name!r} cannot be loaded: {type(error).__name__}: {error}{hint}"
        ) from error
    if not callable(target):
        raise ConfigurationError(f"{info.factory} is not callable")
    return target  # type: ignore[no-any-return]


def __getattr__(name: str) -> object:
    if name == "hookimpl":
        import pluggy

        return pluggy.HookimplMarker(PROJECT)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "EXTRAS",
    "BackendInfo",
    "Plugin",
    "Registry",
    "hookimpl",
    "installed_plugins",
    "open_backend",
]
