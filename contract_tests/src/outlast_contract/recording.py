"""What a check did and what it let go wrong, for the report: calls, faults, and times between.

A check has one `Recorder`, which the tasks that it starts find by themselves; outside of a check
nothing is recorded.
"""

import contextlib
import functools
import inspect
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple, TypeVar

import outlast
from outlast.contracts.checkpoints import StreamCheckpointStore
from outlast.contracts.persistence import PersistenceManager
from outlast.errors import OutlastError

BackendT = TypeVar("BackendT", bound=outlast.Backend)

NO_FAULT: Final = ""
"""The kind of calls that met none."""
_MOST_CALLS: Final = 60
_MOST_FAULTS: Final = 200

_METHODS: Final = tuple(
    (part, name)
    for part, contract in (
        ("persistence", PersistenceManager),
        ("checkpoints", StreamCheckpointStore),
    )
    for name, method in vars(contract).items()
    if inspect.iscoroutinefunction(method) and not name.startswith("_")
)


class Call(NamedTuple):
    """A call of the contract, as its caller saw it.

    Attributes:
        client: Which of the check's clients, from 1.
        what: Method, id and epoch.
        began: In seconds since the check began.
        outcome: ``done``, ``refused`` or ``unknown``.
        error: What it ended with, in words; empty if it was done.
    """

    client: int
    what: str
    began: float
    ended: float
    outcome: Literal["done", "refused", "unknown"]
    error: str = ""


class Injected(NamedTuple):
    """Something that was let go wrong.

    Attributes:
        began: In seconds since the check began.
        ended: When it was over.
    """

    what: str
    began: float
    ended: float


class Sample(NamedTuple):
    """How long a call took that met a fault, or none.

    Attributes:
        fault: Its kind, or `NO_FAULT`.
    """

    fault: str
    outcome: str
    seconds: float


class Recording(NamedTuple):
    """What a recorder has in the end.

    Attributes:
        calls: The last ones before the end.
        omitted: How many calls before them are left out.
        injected: What went wrong; the first ones, if there were very many.
        strikes: How often something did.
        samples: The time of each call, where faults were injected.
        seconds: When it ended, since the check began.
    """

    calls: tuple[Call, ...] = ()
    omitted: int = 0
    injected: tuple[Injected, ...] = ()
    strikes: int = 0
    samples: tuple[Sample, ...] = ()
    seconds: float = 0.0


_WORDS: Final = {
    "lose reply": "reply lost",
    "reset reply": "reply reset",
    "truncate": "reply cut",
    "hold": "held, released late",
    "black hole": "silence",
    "delay": "late",
    "slow": "in pieces",
    "answer": "another answer",
}
"""Faults that read better by another name than that of their function or class."""

NOTHING: Final = Recording()
"""Of a check that was not recorded."""


class _Fault:
    __slots__ = ("began", "ended", "source", "what")

    def __init__(self, what: str, source: object, began: float) -> None:
        self.what, self.source, self.began = what, source, began
        self.ended: float | None = None


class Recorder:
    """Notes the calls of the clients that it watches, and what is injected meanwhile."""

    def __init__(self) -> None:
        self._origin = time.monotonic()
        self._clients = 0
        self._calls: deque[Call] = deque(maxlen=_MOST_CALLS)
        self._seen = 0
        self._faults: list[_Fault] = []
        self._strikes = 0
        self._recent: deque[_Fault] = deque(maxlen=64)
        self._samples: list[Sample] = []

    def watch(self, backend: outlast.Backend, source: object = None) -> None:
        """Note the calls of a client. Faults of another source than its own do not meet it."""
        self._clients += 1
        for part, name in _METHODS:
            # A backend that does not let itself be watched is none the worse for it.
            with contextlib.suppress(Exception):
                target = getattr(backend, part)
                if name not in vars(target):
                    setattr(target, name, self._watched(target, name, self._clients, source))

    def _watched(self, target: Any, name: str, client: int, source: object) -> Callable[..., Any]:
        # By a weak reference, or the client would live as long as the garbage collector likes.
        owner = weakref.ref(target)
        method: Any = getattr(target.__class__, name)

        @functools.wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            if _inside.get():
                return await method(owner(), *arguments, **options)
            token = _inside.set(True)
            began = time.monotonic()
            error: BaseException | None = None
            answer: Any = None
            try:
                answer = await method(owner(), *arguments, **options)
                return answer
            except BaseException as raised:
                error = raised
                raise
            finally:
                _inside.reset(token)
                # Whatever a check passes or a backend raises: it is recorded, or it is not.
                with contextlib.suppress(Exception):
                    what = _described(name, arguments, options, answer)
                    self._note(client, what, began, error, source)

        return call

    def _note(
        self, client: int, what: str, began: float, error: BaseException | None, source: object
    ) -> None:
        ended = time.monotonic()
        outcome: Literal["done", "refused", "unknown"] = "done"
        text = ""
        if error is not None:
            is_unknown = not isinstance(error, OutlastError) or error.applied is None
            outcome = "unknown" if is_unknown else "refused"
            text = type(error).__name__
            if isinstance(error, OutlastError):
                text += f": {error.message}"
        origin = self._origin
        self._seen += 1
        self._calls.append(Call(client, what, began - origin, ended - origin, outcome, text))
        met = {
            fault.what
            for fault in self._recent
            if (fault.source is None or fault.source is source)
            and fault.began <= ended
            and (fault.ended is None or fault.ended >= began)
        }
        kinds = sorted(met) or [NO_FAULT]
        self._samples += [Sample(kind, outcome, ended - began) for kind in kinds]

    def begin(self, what: str, source: object = None) -> Callable[[], None]:
        """Note that something goes wrong from now on, until what is returned is called."""
        fault = _Fault(what, source, time.monotonic())
        self._strikes += 1
        self._recent.append(fault)
        if len(self._faults) < _MOST_FAULTS:
            self._faults.append(fault)

        def end() -> None:
            fault.ended = time.monotonic()

        return end

    def recording(self, *, with_calls: bool) -> Recording:
        """What there is now; without calls where nobody will look at them."""
        now = time.monotonic()
        injected = tuple(
            Injected(fault.what, fault.began - self._origin, (fault.ended or now) - self._origin)
            for fault in self._faults
        )
        return Recording(
            tuple(self._calls) if with_calls else (),
            self._seen - len(self._calls),
            injected,
            self._strikes,
            tuple(self._samples) if self._strikes else (),
            now - self._origin,
        )


_current: ContextVar[Recorder | None] = ContextVar("outlast_contract_recorder", default=None)
_inside: ContextVar[bool] = ContextVar("outlast_contract_inside", default=False)


@contextlib.contextmanager
def recorded() -> Generator[Recorder]:
    """A recorder for what is done inside."""
    recorder = Recorder()
    token = _current.set(recorder)
    try:
        yield recorder
    finally:
        _current.reset(token)


def watched(backend: BackendT, source: object = None) -> BackendT:
    """The same backend, whose calls the running check's recorder notes, if there is one."""
    recorder = _current.get()
    if recorder is not None:
        recorder.watch(backend, source)
    return backend


def begun(what: str, source: object = None) -> Callable[[], None]:
    """Note that something goes wrong from now on, until what is returned is called."""
    recorder = _current.get()
    return _nothing if recorder is None else recorder.begin(what, source)


def _nothing() -> None:
    pass


@contextlib.contextmanager
def injecting(what: str, source: object = None) -> Generator[None]:
    """Note that something goes wrong as long as it is entered."""
    end = begun(what, source)
    try:
        yield
    finally:
        end()


def injected(what: str, source: object = None) -> None:
    """Note that something went wrong just now."""
    begun(what, source)()


def fault_name(fault: object) -> str:
    """A fault in words, by the name of its function or class."""
    name = getattr(fault, "__name__", "") or type(fault).__name__
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    words = words.replace("_", " ").strip()
    return _WORDS.get(words, words)


def _described(name: str, arguments: Iterable[Any], options: dict[str, Any], answer: object) -> str:
    """A call for people: ids and numbers of claims, no data."""
    first = next(iter(arguments), None)
    key = getattr(first, "run_id", first)
    text = key if isinstance(key, str) else type(key).__name__
    shown = text if len(text) <= 24 else f"{text[:21]}..."
    if isinstance(answer, outlast.Claim):
        return f"{name}({shown}) = epoch {answer.epoch}"
    epoch = getattr(options.get("claim"), "epoch", None)
    return f"{name}({shown})" + (f" epoch {epoch}" if isinstance(epoch, int) else "")


__all__ = [
    "NOTHING",
    "NO_FAULT",
    "Call",
    "Injected",
    "Recorder",
    "Recording",
    "Sample",
    "begun",
    "fault_name",
    "injected",
    "injecting",
    "recorded",
    "watched",
]
