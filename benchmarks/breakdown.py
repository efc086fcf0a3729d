"""Where the time of one append goes: encode, loop, driver, server."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import outlast
from benchmarks.places import Place
from outlast.cli.bench.rows import Profile, encoded, message
from outlast.contracts import DriverBackend
from outlast.driver import Capabilities, Entry, Fence, Scope, StoredFence, Value
from outlast.driver import Driver as AnyDriver
from outlast.values import check_messages

_AT_ONCE = 100


@dataclass(frozen=True)
class Breakdown:
    """Microseconds of one append.

    Attributes:
        encode: Checking and encoding the message.
        loop: The rest of what is the same for all backends: order, deadline, retries, the task
            that sees the call through.
        driver: What the backend and its client library compute.
        server: Waiting: the network, the server, its disk.
    """

    encode: float
    loop: float
    driver: float
    server: float


class _Void(AnyDriver):
    """A driver that does nothing: what is left is the contract's part."""

    name = "void"
    capabilities = Capabilities(
        data_survives=frozenset(),
        fences_survive=frozenset(),
        reach="process",
        max_message_bytes=2**30,
    )

    async def setup(self, *, create: bool) -> None: ...

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        return Value(fence=StoredFence(1, claim_id))

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        return []

    async def _never(self, *arguments: object, **more: object) -> object:
        raise AssertionError("not a part of an append")

    read = write = load = replace = remove = scan = sweep = _never  # type: ignore[assignment]


async def measure_breakdown(place: Place, profile: Profile) -> Breakdown:
    """Take one append apart."""
    messages = [message(number) for number in range(_AT_ONCE)]
    encode: list[float] = []
    for _ in range(profile.count // 10):
        begun = time.process_time()
        for one in messages:
            encoded(check_messages((one,), outlast.ApiMessage)[0])
        encode.append((time.process_time() - begun) / _AT_ONCE)
    contract, _ = await _appends(DriverBackend(_Void(), namespace="void"), profile)
    backend = outlast.open_backend(place.url, namespace="breakdown", **place.options)
    all_of_it, wall = await _appends(backend, profile)
    encoding = statistics.median(encode)
    return Breakdown(
        *(
            seconds * 1e6
            for seconds in (
                encoding,
                contract - encoding,
                all_of_it - contract,
                max(wall - all_of_it, 0.0),
            )
        )
    )


async def _appends(backend: outlast.Backend, profile: Profile) -> tuple[float, float]:
    """Seconds of the processor, and on the wall, that one append takes."""
    processor: list[float] = []
    wall: list[float] = []
    async with backend:
        claim = await backend.persistence.claim_task("breakdown")
        numbers = iter(range(10**9))
        for _ in range(max(5, profile.count // 20)):
            messages = [message(next(numbers)) for _ in range(_AT_ONCE)]
            begun, busy = time.perf_counter(), time.process_time()
            for one in messages:
                await backend.persistence.append_api_message("breakdown", one, claim=claim)
            processor.append((time.process_time() - busy) / _AT_ONCE)
            wall.append((time.perf_counter() - begun) / _AT_ONCE)
    return statistics.median(processor), statistics.median(wall)


__all__ = ["Breakdown", "measure_breakdown"]
