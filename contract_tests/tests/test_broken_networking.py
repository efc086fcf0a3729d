"""The faults tier bites: drivers of Redis that are wrong only when the network fails are found."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import pytest

pytest.importorskip("outlast_redis")

from redis.exceptions import ResponseError

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import Entry, Fence, Index, Scope, Value, admit
from outlast.errors import (
    OutcomeUnknownError,
    OutlastError,
    StaleWriteError,
    UnavailableError,
)
from outlast_contract.engine import Result, Settings, run_check_sync, select_checks
from outlast_contract.faults.endpoints import moved
from outlast_contract.faults.wires import Address
from outlast_contract.harness import UrlHarness
from outlast_contract.servers import ServerUnavailable, shared_server, start_server
from outlast_contract.stores.redis import RedisHarness
from outlast_redis import RedisDriver, _links
from outlast_redis._answers import pack

ResultT = TypeVar("ResultT")

pytestmark = [pytest.mark.faults, pytest.mark.slow]


class Harness(UrlHarness):
    """The shared server, through a driver and a backend of classes of its own."""

    driver_class: type[RedisDriver] = RedisDriver
    backend_class: type[DriverBackend] = DriverBackend

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        return self._make(str(self.url), namespace, **options)

    async def open_through(
        self, namespace: str, addresses: Mapping[Address, Address], **options: Any
    ) -> outlast.Backend:
        url, _ = moved(str(self.url), {}, addresses)
        return self._make(url, namespace, **options)

    def _make(self, url: str, namespace: str, **options: Any) -> outlast.Backend:
        driver = self.driver_class.from_url(url, namespace=namespace)
        return self.backend_class(driver, namespace=namespace, **options)


class RepeatsAppends(RedisDriver):
    """An append is a plain RPUSH, and is repeated after a lost reply, as client libraries do."""

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        key = self._keys.of(scope).log(log).entries
        for _ in range(3):
            with contextlib.suppress(OutcomeUnknownError):
                await self._open.send(key, ("RPUSH", key, *map(pack, entries)))
                break
        return []


class CallsLostNotApplied(RedisDriver):
    """A reply that is lost is taken for a mutation that was not applied."""

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        try:
            await super().replace(scope, log, entries, fence=fence)
        except OutcomeUnknownError as error:
            raise UnavailableError(error.message) from error


class SwallowsFailures(RedisDriver):
    """A deletion that cannot be sent is logged and forgotten."""

    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        with contextlib.suppress(UnavailableError, OutcomeUnknownError):
            await super().remove(scope, fence=fence)


class RefusesItsOwnSuccess(RedisDriver):
    """The repetition of a write that was applied, but not answered, is refused as stale."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unanswered: set[str] = set()

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        before = (await self.read(scope, register)).fence
        if fence is not None and before is not None and before.op == fence.op:
            raise StaleWriteError("stale", before.epoch)
        return await super().write(
            scope, register, data, fence=fence, index=index, if_version=if_version
        )


class ReadsNothing(RedisDriver):
    """A read that fails says that nothing is stored."""

    async def load_data(
        self,
        scope: Scope,
        log: str,
        decode: Callable[[Iterable[bytes]], ResultT],
        *,
        last: int | None = None,
    ) -> ResultT:
        try:
            return await super().load_data(scope, log, decode, last=last)
        except OutlastError:
            return decode(())


class ComparesInTheClient(RedisDriver):
    """The fence is read and compared by the client, and the write is sent without it."""

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        if not admit((await self.read(scope, register)).fence, fence):
            return 0
        key = self._keys.of(scope).head
        fields = (register, data or b"", f"{register}.time", 0, f"{register}.version", 1)
        await self._open.send(key, ("HSET", key, *fields))
        return 1


class AsksTwice(RedisDriver):
    """What is read is read once more, to be sure."""

    async def read(self, scope: Scope, register: str) -> Value:
        await super().read(scope, register)
        return await super().read(scope, register)


class ReplacesInTwoSteps(RedisDriver):
    """A log is replaced in two steps: its old entries go, and then the new ones come."""

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        if fence is not None and entries:
            first = Fence(fence.epoch, fence.claim_id, fence.seq, f"{fence.op}-0")
            await super().replace(scope, log, [], fence=first)
            later = Fence(fence.epoch, fence.claim_id, fence.seq + 1, fence.op)
            await super().replace(scope, log, entries, fence=later)
            return
        await super().replace(scope, log, entries, fence=fence)


class LeavesConnections(RedisDriver):
    """Closing forgets the connections instead of closing them."""

    kept: ClassVar[list[Any]] = []

    async def aclose(self) -> None:
        self.kept.append(self._link)
        self._link = None


class KeepsDirtyConnections(RedisDriver):
    """A connection whose call was cancelled is used again, with the answer still to come."""

    async def setup(self, *, create: bool) -> None:
        await super().setup(create=create)
        link = self._link
        assert isinstance(link, _links.ServerLink)
        lender = link._lender

        async def on(_: _links.Lender, place: str, commands: Sequence[Any]) -> list[Any]:
            free = lender._free  # type: ignore[attr-defined]
            connection = free.pop() if free else await lender.acquire()
            answers: list[Any] = []
            try:
                await connection.send_packed_command(_links.pack(commands), check_health=False)
                while len(answers) < len(commands):
                    try:
                        # redis-py would close it; before 4.5.5 it did not.
                        answer = await connection.read_response(
                            disable_decoding=True, disconnect_on_error=False
                        )
                    except ResponseError as error:
                        answer = error
                    answers.append(answer)
            except _links.RAISED as error:
                await connection.disconnect(nowait=True)
                raise OutcomeUnknownError("lost") from error
            finally:
                await lender.release(connection)
            return answers

        link.on = on  # type: ignore[method-assign]


class LetsErrorsOut(RedisDriver):
    """Errors of the client library are not translated: nobody knows what may be repeated."""

    async def claim(self, scope: Scope, claim_id: str, **options: Any) -> Value:
        try:
            return await super().claim(scope, claim_id, **options)
        except OutcomeUnknownError as error:
            raise error.__cause__ or error from None


BROKEN: dict[type[RedisDriver], tuple[str, str]] = {
    RepeatsAppends: ("a_broken_connection_costs_an_owner_nothing[append_api_message]", "A2"),
    CallsLostNotApplied: ("a_network_that_loses_everything_is_told_truly[every reply]", "E2"),
    SwallowsFailures: ("a_store_that_is_away_is_unavailable", "E1"),
    RefusesItsOwnSuccess: ("a_broken_connection_costs_an_owner_nothing[save_task_input]", "E2"),
    ReadsNothing: ("a_store_that_is_away_is_unavailable", "E1"),
    ComparesInTheClient: ("a_late_request_changes_nothing[save_task_input]", "F2"),
    AsksTwice: ("one_call_is_one_round_trip", "P1"),
    ReplacesInTwoSteps: (
        "a_process_killed_at_a_request_leaves_old_or_new[save_api_messages]",
        "A1",
    ),
    LeavesConnections: ("closing_closes_every_connection", "C7"),
    KeepsDirtyConnections: ("a_read_cancelled_at_an_exchange_disturbs_no_other", "X2"),
    LetsErrorsOut: ("a_broken_connection_takes_one_claim[task]", "E2"),
}


@pytest.fixture(scope="module")
def url() -> str:
    try:
        return shared_server("redis").url
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")


def run(name: str, make: Callable[[], UrlHarness], settings: Settings | None = None) -> Result:
    (check,) = [one for one in select_checks(tiers=["faults"]) if one.name == name]
    return run_check_sync(check, make, settings)


@pytest.mark.parametrize("broken", BROKEN, ids=[one.__name__ for one in BROKEN])
def test_a_driver_that_is_wrong_when_the_network_fails_is_found(
    url: str, broken: type[RedisDriver]
) -> None:
    """By the check that is about it, and with the clause that it breaks."""
    name, clause = BROKEN[broken]

    class BrokenHarness(Harness):
        driver_class = broken

    result = run(name, lambda: BrokenHarness(url))
    assert (result.status, result.clause) == ("failed", clause), result


@pytest.mark.parametrize("name", sorted({name for name, _ in BROKEN.values()}))
def test_the_same_checks_pass_a_driver_that_is_right(url: str, name: str) -> None:
    """Nothing but the defects makes them fail."""
    result = run(name, lambda: Harness(url))
    assert result.status == "passed", result


class KeepsQuiet(RedisDriver):
    """What the server has no room for is dropped without a word."""

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        try:
            return await super().append(scope, log, entries, fence=fence, present=present)
        except UnavailableError:
            return []


@pytest.mark.parametrize("broken", [RedisDriver, KeepsQuiet])
def test_a_driver_that_drops_what_there_is_no_room_for_is_found(
    broken: type[RedisDriver],
) -> None:
    """On a server of its own, which may be told to take no more; and a right one passes."""

    class FullHarness(RedisHarness, Harness):
        driver_class = broken

    try:
        server = start_server("redis")
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    with server:
        result = run(
            "a_server_without_room_says_so",
            lambda: FullHarness(server.url),
            Settings(server_faults=True),
        )
    wanted = ("passed", None) if broken is RedisDriver else ("failed", "E2")
    assert (result.status, result.clause) == wanted, result
