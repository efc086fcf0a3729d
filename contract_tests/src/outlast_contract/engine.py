"""One registry of checks, and the way one of them is run; both doors of the suite stand on it.

A check is an async function of a `Context`. It names the clauses that it verifies; it raises
`Violation` if one is broken and `NotRun` if it cannot be carried out here.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import Driver, NotWrittenError
from outlast.errors import OutlastError, UnavailableError
from outlast_contract._interrupts import run_in_own_loop
from outlast_contract.clauses import CLAUSES
from outlast_contract.expect import NotRun, Violation
from outlast_contract.faults.network import Network
from outlast_contract.harness import Harness
from outlast_contract.recording import NOTHING, Recording, recorded, watched

Tier = Literal["contract", "race", "faults"]
TIERS: Final[tuple[Tier, ...]] = ("contract", "race", "faults")

Need = Literal[
    "driver",
    "endpoints",
    "host",
    "http",
    "options",
    "raw",
    "secret",
    "server",
    "server faults",
    "processes",
    "same store in processes",
]
"""What a check asks of a harness or backend: see `Context.missing`."""
NO_SERVER: Final[tuple[Need, ...]] = (
    "endpoints",
    "host",
    "http",
    "secret",
    "server",
    "server faults",
)
"""What a store without a server lacks: there is nothing to connect to, to log in at, to stop."""

Status = Literal["passed", "failed", "not run"]
Body = Callable[["Context"], Awaitable[None]]
CaseT = TypeVar("CaseT")


def number_in(variable: str, least: int | None = 1) -> int | None:
    """The whole number in a variable of the environment; ``None``: it is empty, or not there.

    Raises:
        ValueError: It is none, or less than ``least``.
    """
    text = os.environ.get(variable, "")
    if not text:
        return None
    wanted = "a whole number" if least is None else f"a whole number from {least} on"
    try:
        number = int(text)
        if least is None or number >= least:
            return number
    except ValueError:
        pass
    raise ValueError(f"{variable} must be {wanted}, not {text!r}")


@dataclass(frozen=True)
class Settings:
    """How much is done, and with which random numbers.

    Attributes:
        seed: Of all random choices, namespaces and ids aside.
        rounds: Of each race.
        contenders: In each race, every one with a client of its own.
        kills: Processes that are killed in each check that kills.
        listed: Tasks in the checks of complete lists.
        time_limit: Seconds after which a check has failed.
        thorough: Whether every kind of fault is tried everywhere, instead of those that differ
            most.
        heavy: Whether checks that move much data are run; else they are "not run".
        server_faults: Whether a server that the suite did not start may suffer what its other
            users would notice.
        run: Part of the names of all namespaces of a run, random.
    """

    seed: int = 0
    rounds: int = 10
    contenders: int = 8
    kills: int = 10
    listed: int = 1500
    time_limit: float = 50.0
    thorough: bool = False
    heavy: bool = True
    server_faults: bool = False
    run: str = field(default_factory=lambda: secrets.token_hex(3))

    @classmethod
    def from_environment(cls, **given: int | None) -> "Settings":
        """What is given, else ``OUTLAST_CONTRACT_SEED``, ``_ROUNDS`` and ``_KILLS``, else the
        defaults; ``OUTLAST_CONTRACT_THOROUGH=1`` makes it thorough, and
        ``OUTLAST_CONTRACT_HEAVY=0`` leaves heavy checks out.
        """
        values: dict[str, Any] = {}
        for name in ("seed", "rounds", "kills"):
            value = given.get(name)
            if value is None:
                variable = f"OUTLAST_CONTRACT_{name.upper()}"
                value = number_in(variable, least=None if name == "seed" else 1)
            if value is not None:
                values[name] = value
        if os.environ.get("OUTLAST_CONTRACT_THOROUGH", "0") not in ("", "0"):
            values |= {"thorough": True, "time_limit": 300.0}
        values["heavy"] = os.environ.get("OUTLAST_CONTRACT_HEAVY", "1") != "0"
        return cls(**values)

    def extended(self, *, thorough: bool = False, server_faults: bool = False) -> "Settings":
        """The same, and more; a thorough check has more time."""
        return replace(
            self,
            thorough=self.thorough or thorough,
            server_faults=self.server_faults or server_faults,
            time_limit=max(self.time_limit, 300.0) if thorough else self.time_limit,
        )

    def shortened(self) -> "Settings":
        """The same, and less: for a store that differs little from one that is tried in full."""
        return replace(
            self,
            rounds=min(self.rounds, 3),
            kills=min(self.kills, 2),
            listed=min(self.listed, 300),
            heavy=False,
        )


@dataclass(frozen=True)
class Check:
    """One check and what it says of itself.

    Attributes:
        name: Unique, such as ``a_superseded_claim_cannot_write[put]``.
        clauses: The clauses that are verified if it passes; a failure counts against the first.
        tier: ``contract`` (one thing at a time), ``race`` (contenders) or ``faults`` (messages are
            lost, late or slow).
        title: What it claims, for people.
        needs: What must be there for it to run.
        heavy: Whether it moves so much data that a profile for frequent runs may leave it out.
    """

    name: str
    clauses: tuple[str, ...]
    tier: Tier
    title: str
    body: Body = field(repr=False, compare=False)
    needs: frozenset[Need] = frozenset()
    heavy: bool = False

    @property
    def family(self) -> str:
        """Its name without the case: the same for all that one `check_each` registered."""
        return self.name.partition("[")[0]

    @property
    def test_name(self) -> str:
        """The name of its test in a class made by ``contract_suite``."""
        text = self.name.replace("[", "_").rstrip("]")
        return f"test_{self.clauses[0].lower()}_{text}"


@dataclass(frozen=True)
class Result:
    """What became of one check.

    Attributes:
        clause: The broken clause, if it failed.
        detail: Why it failed or was not run; empty if it passed.
        notes: Parts that were not run although the check passed: clause (or empty) and reason.
        seconds: How long it took.
        trace: Where an unexpected error came from.
        recording: What was injected; the calls, too, if it failed.
    """

    check: Check
    status: Status
    clause: str | None = None
    detail: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    trace: str = ""
    recording: Recording = NOTHING

    def without(self, secrets: Iterable[str]) -> "Result":
        """The same, with ``***`` wherever one of the secrets is shown."""
        hidden = sorted({text for text in secrets if text}, key=len, reverse=True)
        if not hidden:
            return self

        def clean(text: str) -> str:
            for secret in hidden:
                text = text.replace(secret, "***")
            return text

        calls = tuple(
            one._replace(what=clean(one.what), error=clean(one.error))
            for one in self.recording.calls
        )
        return replace(
            self,
            detail=clean(self.detail),
            trace=clean(self.trace),
            notes=tuple((clause, clean(text)) for clause, text in self.notes),
            recording=self.recording._replace(calls=calls),
        )


_registry: dict[str, Check] = {}


def check(
    *clauses: str,
    tier: Tier = "contract",
    needs: Iterable[Need] = (),
    heavy: bool = False,
) -> Callable[[Body], Body]:
    """Register a check; its docstring's first paragraph is its title."""

    def register(body: Body) -> Body:
        _register(body, getattr(body, "__name__", ""), body.__doc__, clauses, tier, needs, heavy)
        return body

    return register


def check_each(
    cases: Mapping[str, CaseT],
    *clauses: str,
    tier: Tier = "contract",
    needs: Iterable[Need] = (),
    heavy: bool = False,
) -> Callable[[Callable[["Context", CaseT], Awaitable[None]]], object]:
    """Register one check per case; the function takes the case behind the context."""

    def register(body: Callable[["Context", CaseT], Awaitable[None]]) -> object:
        for label, case in cases.items():

            async def run(context: "Context", case: CaseT = case) -> None:
                await body(context, case)

            name = f"{getattr(body, '__name__', '')}[{label}]"
            _register(run, name, body.__doc__, clauses, tier, needs, heavy)
        return body

    return register


def _register(
    body: Body,
    name: str,
    doc: str | None,
    clauses: tuple[str, ...],
    tier: Tier,
    needs: Iterable[Need],
    heavy: bool,  # noqa: FBT001 - the last of seven, and private
) -> None:
    unknown = [clause for clause in clauses if clause not in CLAUSES]
    if name in _registry or unknown or not clauses or not doc:
        raise ValueError(f"check {name!r}: known already, without docstring, or of {unknown}")
    title = " ".join(doc.strip().partition("\n\n")[0].split())
    _registry[name] = Check(name, clauses, tier, title, body, frozenset(needs), heavy)


def all_checks() -> tuple[Check, ...]:
    """Every check of the suite, in the order in which they are run."""
    import outlast_contract.checks as _  # noqa: F401 - importing it registers them

    return tuple(_registry.values())


def select_checks(
    *,
    tiers: Iterable[str] = TIERS,
    clauses: Iterable[str] = (),
    cases: int | None = None,
    turn: int = 0,
) -> tuple[Check, ...]:
    """The checks of the given tiers that verify one of the given clauses (all of them if none
    is given).

    Args:
        tiers: Which tiers.
        clauses: Ids, such as ``F2``.
        cases: Of a check that is there for many cases, take so many, spread evenly; at least 1.
        turn: Which of them: any number; selections with different ones cover more cases together.
    """
    wanted, chosen = set(tiers), set(clauses)
    found = [
        one
        for one in all_checks()
        if one.tier in wanted and (not chosen or chosen.intersection(one.clauses))
    ]
    if cases is not None:
        families: dict[str, list[Check]] = {}
        for one in found:
            families.setdefault(one.family, []).append(one)
        found = [one for family in families.values() for one in _spread(family, cases, turn)]
    return tuple(found)


def _spread(family: list[Check], count: int, turn: int) -> list[Check]:
    """So many of a family, in its order."""
    if count < 1:
        raise ValueError(f"cases must be at least 1, not {count}")
    size = len(family)
    count = min(count, size)
    taken = {(turn + number * size // count) % size for number in range(count)}
    return [family[number] for number in sorted(taken)]


class Context:
    """What a check works with: clients, names of its own, seeded randomness.

    Attributes:
        namespace: The check's own namespace; `new_namespace` makes more.
        rng: Seeded by the settings' seed and the check's name.
    """

    def __init__(self, harness: Harness, check: Check, settings: Settings) -> None:
        """For the engine: a context serves one run of one check."""
        self.harness = harness
        self.check = check
        self.settings = settings
        digest = hashlib.sha256(f"{settings.seed}/{check.name}".encode()).digest()
        self.rng: random.Random = random.Random(digest)
        self.namespaces: list[str] = []
        self.namespace: str = self.new_namespace()
        self.notes: list[tuple[str, str]] = []
        self._clients: list[outlast.Backend] = []
        self._networks = contextlib.AsyncExitStack()
        self._names = 0

    def new_namespace(self, tail: str = "") -> str:
        """A namespace that nobody else uses, wiped after the check."""
        name = f"oc-{self.settings.run}-{secrets.token_hex(6)}{tail}"
        self.namespaces.append(name)
        return name

    def new_id(self, label: str = "id") -> str:
        """An id that was not used in this check before."""
        self._names += 1
        return f"{label}-{self._names}"

    async def open(self, namespace: str | None = None, **options: Any) -> outlast.Backend:
        """A new client, open; closed after the check. With options it needs
        ``Harness.open_with``.
        """
        backend = await self.make(namespace, **options)
        self._clients.append(backend)
        await backend.open()
        return backend

    async def make(self, namespace: str | None = None, **options: Any) -> outlast.Backend:
        """A new client, not open; the check closes it."""
        name = self.namespace if namespace is None else namespace
        if options:
            return watched(await self.harness.open_with(name, **options))
        return watched(await self.harness.open(name))

    async def open_many(self, count: int) -> list[outlast.Backend]:
        """Several clients of the check's namespace."""
        return [await self.open() for _ in range(count)]

    async def network(self) -> Network:
        """A network before the store, for clients that it may fail.

        Raises:
            NotRun: Nothing can stand before the store.
        """
        return await self._networks.enter_async_context(Network(self.harness))

    async def open_through(self, network: Network, **options: Any) -> outlast.Backend:
        """A new client of the check's namespace behind a network, open; closed after the check."""
        backend = await network.make(self.namespace, **options)
        self._clients.append(backend)
        await backend.open()
        return backend

    async def open_impatient(
        self, timeout: float, source: Network | Harness | None = None
    ) -> outlast.Backend:
        """`open`, also by a network or another harness, though it may take longer than a call."""
        for _ in range(20):
            if isinstance(source, Network):
                backend = await source.make(self.namespace, timeout=timeout)
            else:
                harness = source or self.harness
                backend = watched(await harness.open_with(self.namespace, timeout=timeout))
            self._clients.append(backend)
            with contextlib.suppress(UnavailableError):
                await backend.open()
                return backend
        raise NotRun(f"a client with a timeout of {timeout:g} s could not be opened in 20 attempts")

    async def driver(self, backend: outlast.Backend | None = None) -> Driver:
        """The driver below a client.

        Raises:
            NotRun: The backend is not made of a `Driver`.
        """
        backend = backend or await self.open()
        if not isinstance(backend, DriverBackend):
            raise NotRun("needs a backend on a Driver")
        return backend.driver

    def note(self, reason: str, *, clause: str = "") -> None:
        """Say what part of the check was not run, and why; of one clause, or of the whole check."""
        self.notes.append((clause, reason))

    async def missing(self) -> str | None:
        """Which of the check's needs is not met, in words."""
        probe = await self.harness.open(self.namespace)
        needs = self.check.needs
        harness = type(self.harness)
        if "driver" in needs and not isinstance(probe, DriverBackend):
            return "needs a backend on a Driver"
        if not needs.isdisjoint({"endpoints", "http"}):
            wire = self.harness.endpoints().wire
            if "http" in needs and wire != "http":
                return "for stores that are spoken to by HTTP"
        if "options" in needs and self.harness.url is None and _is_default(harness, "open_with"):
            return "needs Harness.open_with() or Harness.url"
        if "raw" in needs and _is_default(harness, "raw"):
            return "needs Harness.raw(): a look at the store past the adapter"
        may_start = self.harness.server_kind or not _is_default(harness, "start_server")
        if "server" in needs and not may_start:
            return "needs Harness.start_server(): a server that may be killed and stopped"
        if "server faults" in needs:
            if self.harness.server_kind is None and not self.settings.server_faults:
                return "it changes the server for all of its users: allow it with --server-faults"
            if not self.harness.server_faults():
                return "nothing is known that can be done to such a server at any time"
        if "secret" in needs and not self.harness.secrets():
            return "neither Harness.url nor Harness.options has a password or another secret"
        if "host" in needs:
            place = urlsplit(self.harness.url or "")
            if not place.netloc:
                return "needs Harness.url with a host, which would be told a password"
            if place.password is None and not _is_default(harness, "open_with"):
                return (
                    "needs Harness.url with a password: what open_with() makes of it is not known"
                )
        if needs.isdisjoint({"processes", "same store in processes"}):
            return None
        if self.harness.url is None:
            return "needs Harness.url: child processes open the store by it"
        if not hasattr(os, "fork"):
            return "needs a platform with fork()"
        if "same store in processes" in needs and probe.capabilities.reach == "process":
            return "the backend declares that its reach is one process"
        return None

    async def close(self) -> None:
        """Close every client that is still open, and every network."""
        clients, self._clients = self._clients, []
        async with self._networks:
            for backend in reversed(clients):
                try:
                    await backend.aclose()
                except Exception as error:
                    raise Violation(f"closing a client raised {error!r}", "C7") from error


def _is_default(harness: type[Harness], method: str) -> bool:
    return getattr(harness, method) is getattr(Harness, method)


async def run_check(check: Check, harness: Harness, settings: Settings | None = None) -> Result:
    """Run one check against a harness, and remove what it stored.

    The result shows none of ``harness.secrets()``, wherever a backend has put them.
    """
    with recorded() as recorder:
        result = await _run(check, harness, settings or Settings())
        recording = recorder.recording(with_calls=result.status == "failed")
    return replace(result, recording=recording).without(harness.secrets())


async def _run(check: Check, harness: Harness, settings: Settings) -> Result:
    context = Context(harness, check, settings)
    started = time.monotonic()
    status: Status = "passed"
    clause: str | None = None
    detail = trace = ""
    limit = asyncio.timeout(settings.time_limit)
    try:
        async with limit:
            await _run_within(context)
    except NotRun as error:
        status, detail = "not run", error.reason
    except Violation as error:
        status, detail, clause = "failed", error.message, error.clause or check.clauses[0]
    except TimeoutError as error:
        status, clause = "failed", "E6" if limit.expired() else check.clauses[0]
        trace = traceback.format_exc()
        detail = (
            f"still not at its end after {settings.time_limit:g} s"
            if limit.expired()
            else _unexpected(error)
        )
    except Exception as error:  # noqa: BLE001 - whatever a backend throws is a finding
        cause = _first(error)
        status, clause, detail = "failed", check.clauses[0], _unexpected(cause)
        if isinstance(cause, Violation):
            clause, detail = cause.clause or clause, cause.message
        trace = traceback.format_exc()
        if isinstance(cause, NotRun):
            status, clause, detail, trace = "not run", None, cause.reason, ""
        if isinstance(cause, NotWrittenError):
            detail, trace = cause.message, ""
    seconds = time.monotonic() - started
    return Result(check, status, clause, detail, tuple(context.notes), seconds, trace)


async def _run_within(context: Context) -> None:
    await context.harness.start()
    try:
        if context.check.heavy and not context.settings.heavy:
            raise NotRun("moves much data, and the settings leave such checks out")
        reason = await context.missing()
        if reason is not None:
            raise NotRun(reason)
        try:
            await context.check.body(context)
        except BaseException:
            # What the check found is worth more than what closing may add to it.
            with contextlib.suppress(Exception):
                await context.close()
            raise
        await context.close()
    finally:
        for namespace in () if context.harness.is_temporary else context.namespaces:
            # A backend that cannot tidy up has failed, or will fail, the checks about that.
            with contextlib.suppress(Exception):
                await context.harness.wipe(namespace)
        await context.harness.stop()


def _first(error: BaseException) -> BaseException:
    """The violation in a group of errors, or else its first error."""
    nested: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    if not nested:
        return error
    causes = [_first(one) for one in nested]
    return next((cause for cause in causes if isinstance(cause, Violation)), causes[0])


def _unexpected(error: BaseException) -> str:
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, OutlastError) else f"unexpected {kind}: {error}"


def run_check_sync(
    check: Check, make_harness: Callable[[], Harness], settings: Settings | None = None
) -> Result:
    """`run_check` in an event loop of its own."""
    return run_in_own_loop(lambda: run_check(check, make_harness(), settings))


__all__ = [
    "NO_SERVER",
    "TIERS",
    "Check",
    "Context",
    "Need",
    "Result",
    "Settings",
    "Status",
    "Tier",
    "all_checks",
    "check",
    "check_each",
    "run_check",
    "run_check_sync",
    "select_checks",
]
