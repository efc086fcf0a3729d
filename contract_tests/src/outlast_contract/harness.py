"""What a backend gives the suite: a way to open clients, and whatever more it can offer."""

import asyncio
import copy
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import LOGS, PRIMARY, Entry, Index, Scope, Where
from outlast.errors import OutlastError
from outlast.url import redact
from outlast_contract.expect import NotRun
from outlast_contract.faults.endpoints import Endpoints, endpoints_of
from outlast_contract.faults.endpoints import moved as moved_to
from outlast_contract.faults.wires import Address

_SECRET: Final = re.compile("password|secret|token")
"""In the name of an option."""


class ServerControls(Protocol):
    """A server that a check may kill; ``outlast_contract.servers.Server`` is one. Its methods
    return when it is done, and are called in threads.
    """

    @property
    def url(self) -> str:
        """For ``outlast.open_backend``."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Keywords that go with it."""
        ...

    @property
    def addresses(self) -> Sequence[Address]:
        """Host and port of each of its nodes."""
        ...

    def kill(self, node: int = 0) -> None:
        """SIGKILL it; one of its nodes, if it has several."""

    def restart(self, node: int = 0) -> None:
        """Start it again on its data, at the same address, and wait until it serves."""

    def stop(self, node: int = 0) -> None:
        """SIGSTOP it."""

    def cont(self, node: int = 0) -> None:
        """SIGCONT it."""

    def close(self) -> None:
        """End it, and remove its data."""


class Harness:
    """Opens clients of one store; one harness object serves one check.

    Write `open`, or set `url`. Everything else is optional and widens what can be verified; what an
    absent part leaves open is reported as not run.

    Attributes:
        url: A store URL by which ``outlast.open_backend`` opens the store, in child processes too.
        options: Keywords that go with ``url``.
        server_kind: One of ``outlast_contract.servers.KINDS``: `start_server` starts such a server.
        is_temporary: Whether the store as a whole goes with the run: then nothing is wiped, which
            would take as long as many a check.
    """

    url: str | None = None
    options: ClassVar[Mapping[str, Any]] = {}
    server_kind: str | None = None
    is_temporary: bool = False

    async def start(self) -> None:
        """Called before the check; make the store reachable."""

    async def stop(self) -> None:
        """Called after the check, whatever its outcome; release what `start` took."""

    async def open(self, namespace: str) -> outlast.Backend:
        """A new "process": a backend with a client of its own, which the suite opens and closes.

        It is not opened yet. All clients of one harness meet in one store.
        """
        return await self.open_with(namespace)

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        """`open` with keywords of ``outlast.open_backend``, such as ``timeout`` or
        ``checkpoint_ttl``.
        """
        if self.url is None:
            raise NotRun("needs Harness.open_with() or Harness.url")
        return outlast.open_backend(self.url, namespace=namespace, **{**self.options, **options})

    def endpoints(self) -> Endpoints:
        """Where clients connect to; the suite puts a proxy before each address to disturb them.

        For a harness with ``url`` it is read from there. Whoever overrides it overrides
        `open_through`, too.

        Raises:
            NotRun: Nothing can stand in between.
        """
        if self.url is None:
            raise NotRun("needs Harness.url, or Harness.endpoints() and open_through()")
        return endpoints_of(self.url, self.options)

    async def open_through(
        self, namespace: str, moved: Mapping[Address, Address], **options: Any
    ) -> outlast.Backend:
        """`open_with`, for a client that connects to other addresses.

        Args:
            namespace: As for `open`.
            moved: For each address of `endpoints` the one to connect to instead.
            options: As for `open_with`.
        """
        if self.url is None:
            raise NotRun("needs Harness.url, or Harness.endpoints() and open_through()")
        url, given = moved_to(self.url, self.options, moved)
        return outlast.open_backend(url, namespace=namespace, **{**given, **options})

    async def start_server(self) -> "ServerControls":
        """A server of the same kind, started for one check, which kills, stops and restarts it.

        Raises:
            NotRun: None can be started.
        """
        if self.server_kind is None:
            raise NotRun("needs Harness.start_server(): a server that may be killed and stopped")
        from outlast_contract.servers import start_server

        return await asyncio.to_thread(start_server, self.server_kind)

    def secrets(self) -> Sequence[str]:
        """What must never be shown: the password in ``url``, and secrets among ``options``."""
        named = [str(value) for name, value in self.options.items() if _SECRET.search(name)]
        return [*named, *sorted(secrets_of(self.url or ""))]

    def server_faults(self) -> Mapping[str, Callable[[], Awaitable[object]]]:
        """What can be done to the server as a whole, which its other users would notice but which
        it allows at any time: by name, such as ``SCRIPT FLUSH``.

        A command that was given a URL does it only with ``--server-faults``.
        """
        return {}

    def shortages(self) -> Mapping[str, Callable[[], AbstractAsyncContextManager[object]]]:
        """What the server can be made to lack, by name, such as ``memory``: inside the context
        there is no room for anything new. The suite does it to servers that it has started, and to
        others only with ``--server-faults``.
        """
        return {}

    async def versions(self) -> Mapping[str, str]:
        """What the report should name beside the client library, such as the server's version."""
        return {}

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """Everything that the store holds for ``namespace``, past the adapter.

        That is (name, bytes) of each key, row, document, object or file. More than that, such as
        what other namespaces hold, does no harm.
        """
        raise NotRun("needs Harness.raw()")

    async def plant(
        self,
        backend: outlast.Backend,
        scope: Scope,
        slot: str,
        change: Callable[[bytes], bytes],
    ) -> None:
        """Replace what is stored in one slot of an unclaimed scope by damaged bytes.

        Backends on a `Driver` have it for free.

        Args:
            backend: An open client.
            scope: The task or run, which has no claim.
            slot: ``state``, ``input`` or ``checkpoint``; the last entry of ``api`` or ``user``.
            change: Makes the damaged bytes out of those that are stored.
        """
        if not isinstance(backend, DriverBackend):
            raise NotRun("needs Harness.plant(), or a backend on a Driver")
        driver = backend.driver
        if slot in LOGS[scope.kind]:
            entries = await driver.load(scope, slot)
            entries[-1] = Entry(entries[-1].id, change(entries[-1].data))
            await driver.replace(scope, slot, entries, fence=None)
            return
        value = await driver.read(scope, slot)
        if value.data is None:
            raise ValueError(f"nothing is stored in {slot} of {scope}")
        index = Index(value.parent) if slot == PRIMARY[scope.kind] else None
        await driver.write(scope, slot, change(value.data), fence=None, index=index)

    async def wipe(self, namespace: str) -> None:
        """Remove everything of a namespace; called after each check for each namespace it used."""
        backend = await self.open(namespace)
        async with backend:
            if isinstance(backend, DriverBackend):
                await _wipe_by_driver(backend)
            else:
                await _wipe_by_contract(backend)
            await backend.sweep(older_than=timedelta(0))


def secrets_of(url: str) -> set[str]:
    """The passwords and keys in a URL, as they are written there and decoded."""
    shown = redact(url)
    parts = urlsplit(url)
    values = [parts.password or ""]
    values += [value for _, value in parse_qsl(parts.query) if value and value not in shown]
    found = {form for value in values for form in (value, unquote(value))}
    # What is shorter would blot out half of the report.
    return {text for text in found if len(text) >= 3}


def with_password(harness: Harness, password: str, *, safe: str = "") -> Harness:
    """The harness with another password in its URL, where what is ``safe`` stands as it is."""
    scheme, _, rest = (harness.url or "").partition("://")
    netloc = urlsplit(harness.url or "").netloc
    user, _, host = netloc.rpartition("@")
    user = user.partition(":")[0]
    place = rest.removeprefix(netloc)
    return with_url(harness, f"{scheme}://{user}:{quote(password, safe=safe)}@{host}{place}")


def with_url(harness: Harness, url: str) -> Harness:
    """The harness with another URL."""
    other = copy.copy(harness)
    # By its class, whose `url` may be a property.
    vars(other).pop("url", None)
    other.__class__ = type(type(harness).__name__, (type(harness),), {"url": url})
    return other


class UrlHarness(Harness):
    """A harness of a store URL and nothing else."""

    def __init__(self, url: str, **options: Any) -> None:
        """Keep the URL and the keywords for ``outlast.open_backend``; no I/O."""
        self.url: str | None = url
        self.options: Mapping[str, Any] = options  # type: ignore[misc]


async def _wipe_by_driver(backend: DriverBackend) -> None:
    # Without decoding: damaged records go like any other.
    driver = backend.driver
    limit = asyncio.Semaphore(16)

    async def remove(scope: Scope, epoch: int) -> None:
        async with limit:
            fence = None
            if epoch:
                claimed = await driver.claim(scope, _WIPER)
                assert claimed.fence is not None
                fence = outlast.Claim(
                    scope, claimed.fence.epoch, _WIPER, seq=claimed.fence.seq
                ).next_fence()
            await driver.remove(scope, fence=fence)

    for kind in ("task", "run"):
        after: str | None = None
        while True:
            page = await driver.scan(
                "task" if kind == "task" else "run",
                where=Where(with_empty=True),
                after=after,
                limit=200,
            )
            async with asyncio.TaskGroup() as group:
                for item in page.items:
                    scope = Scope("task" if kind == "task" else "run", item.id)
                    group.create_task(remove(scope, item.value.epoch))
            after = page.next
            if after is None:
                break


_WIPER = "c1ea" * 8


async def _wipe_by_contract(backend: outlast.Backend) -> None:
    tasks, runs = backend.persistence, backend.checkpoints
    ids = [state.id async for state in _unless_damaged(tasks.iter_task_states())]
    for task_id in ids:
        await tasks.delete_task(task_id, force=True)
    checkpoints = [point async for point in _unless_damaged(runs.iter_checkpoints())]
    for thread_id in {checkpoint.thread_id for checkpoint in checkpoints}:
        await runs.delete_thread(thread_id, force=True)


async def _unless_damaged(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        async for item in items:
            yield item
    except OutlastError:
        return


__all__ = ["Endpoints", "Harness", "ServerControls", "UrlHarness"]
