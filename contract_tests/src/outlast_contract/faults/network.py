"""The network between a check's clients and its store: proxies, and clients behind them."""

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import outlast
from outlast_contract.expect import NotRun
from outlast_contract.faults.endpoints import moved
from outlast_contract.faults.proxy import Proxy, Script
from outlast_contract.faults.wires import Address
from outlast_contract.harness import Harness, UrlHarness
from outlast_contract.recording import begun, injected, watched


class Network:
    """Proxies before all endpoints of a store; ``async with Network(harness) as network:``.

    Attributes:
        script: What goes wrong.
        proxies: One for each endpoint.
        wire: The protocol.
    """

    def __init__(self, harness: Harness) -> None:
        """Stand before the harness's endpoints.

        Raises:
            NotRun: It has none.
        """
        self._harness = harness
        endpoints = harness.endpoints()
        self.wire: str = endpoints.wire
        self.script: Script = Script()
        self.proxies: list[Proxy] = [
            Proxy(address, endpoints.wire, self.script) for address in endpoints.addresses
        ]
        self._end_away: Callable[[], None] = _nothing
        self._end_deaf: Callable[[], None] = _nothing

    async def __aenter__(self) -> Self:
        for proxy in self.proxies:
            await proxy.accept()
        for proxy in self.proxies:
            proxy.moved = self.addresses
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for proxy in self.proxies:
            with contextlib.suppress(OSError):
                await proxy.aclose()

    @property
    def addresses(self) -> dict[Address, Address]:
        """Where each endpoint is reached through the network."""
        return {proxy.target: proxy.address for proxy in self.proxies}

    @property
    def connections(self) -> int:
        """How many connections clients hold open."""
        return sum(proxy.connections for proxy in self.proxies)

    @property
    def most(self) -> int:
        """How many they held open at once at most, summed over the endpoints."""
        return sum(proxy.most for proxy in self.proxies)

    async def make(self, namespace: str, **options: Any) -> outlast.Backend:
        """A client behind the network, not open."""
        client = await self._harness.open_through(namespace, self.addresses, **options)
        return watched(client, self.script)

    def for_processes(self) -> UrlHarness:
        """The store behind the network by a URL, for ``Workers``.

        Raises:
            NotRun: It has no URL.
        """
        if self._harness.url is None:
            raise NotRun("needs Harness.url: child processes open the store by it")
        url, options = moved(self._harness.url, self._harness.options, self.addresses)
        return UrlHarness(url, **options)

    async def go_down(self) -> None:
        """Break all connections and refuse new ones."""
        self._end_away()
        self._end_away = begun("store away", self.script)
        for proxy in self.proxies:
            await proxy.refuse()

    async def come_back(self) -> None:
        """Accept connections again."""
        for proxy in self.proxies:
            await proxy.accept()
        self._end_away()

    def go_deaf(self, *, deaf: bool = True) -> None:
        """Accept new connections and say nothing on them, or stop doing so."""
        self._end_deaf()
        if deaf:
            self._end_deaf = begun("new connections unanswered", self.script)
        for proxy in self.proxies:
            proxy.is_deaf = deaf

    async def break_all(self, *, reset: bool = False) -> None:
        """Break all connections."""
        injected("all connections broken", self.script)
        for proxy in self.proxies:
            await proxy.break_all(reset=reset)


def _nothing() -> None:
    """What has not begun."""


__all__ = ["Network"]
