"""Recorded streams of each protocol, cut everywhere: the history that follows is a valid one.

The real SDK clients read the recording and ask for the rest; what they ask is held against the
provider's own rules (`protocol_rules`), and so is the next request, which carries the whole turn.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from operator import attrgetter
from typing import Any

import pytest
from protocol_rules import check_chat
from wire_kit import BUDGET, CHAT, PREFILL, PROTOCOLS, RESPONSES, Protocol, Tape, httpx

from outlast import ApiMessage, Backend, MemoryBackend
from outlast.cli._model_server import Refusal, Reply, ScriptedCall
from outlast.model_api import Model
from outlast.runtime import (
    ModelEvent,
    ModelRequest,
    RecoveryKind,
    RetryableModelError,
    RetryPolicy,
    RunContext,
    StreamEnd,
    Turn,
    run_turn,
)

TEXT = "Ja: \n\n\U0001f327 in Århus."
CALLS = [
    {"type": "tool_call", "id": "call_1", "name": "find", "arguments": {"q": "ü"}},
    {"type": "tool_call", "id": "call_2", "name": "now", "arguments": {}},
]
SCRIPT = (
    Reply(
        TEXT,
        (ScriptedCall("call_1", "find", '{"q": "ü"}'), ScriptedCall("call_2", "now", "{}")),
        reasoning="Rain?",
        piece=3,
    ),
    Reply("Bis bald.", reasoning="Done."),
)
QUESTION = ApiMessage(id="u1", role="user", content="Regnet es?")
SYSTEM = ApiMessage(id="s", role="system", content="Sei kurz.")


PARTS = 16
SPREAD = [pytest.param(part, marks=[] if part == 5 else pytest.mark.long) for part in range(PARTS)]
"""Cuts at every byte, a sixteenth of them at a time; one is enough for each day."""
NAME = attrgetter("name")


@pytest.fixture(params=PROTOCOLS, ids=NAME)
def protocol(request: pytest.FixtureRequest) -> Protocol:
    found: Protocol = request.param
    return found


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


async def ask(
    backend: Backend, model: Model, task: str, history: list[ApiMessage], **policy: Any
) -> Turn:
    """One turn of one process."""
    context = RunContext(
        backend.persistence,
        task_id=task,
        run_id=task,
        message_id=f"m{len(history)}",
        claim=await backend.persistence.claim_task(task),
        retry=RetryPolicy(**{"base_delay": 0.0, **policy}),
    ).with_stream_checkpoint(backend.checkpoints)
    async with run_turn(context, model, ModelRequest(history)) as turn:
        async for _ in turn:
            pass
    return turn


def shown(turn: Turn) -> tuple[str, list[Any]]:
    """The committed text and calls."""
    assert turn.message is not None
    content: list[Any] = turn.message.content  # type: ignore[assignment]
    text = "".join(block["text"] for block in content if block["type"] == "text")
    return text, [block for block in content if block["type"] == "tool_call"]


def results_of(turn: Turn) -> list[ApiMessage]:
    """What the tools of a turn give; the second of them fails."""
    messages: list[ApiMessage] = []
    for place, call in enumerate(shown(turn)[1]):
        result = {
            "type": "tool_result",
            "call_id": call["id"],
            "content": "",
            "is_error": place > 0,
        }
        messages.append(ApiMessage(id=f"r-{call['id']}", role="tool", content=[result]))
    return messages


class Killed(BaseException):
    """Stands for the death of the process: nothing handles it."""


class MortalModel:
    """A model whose process dies where the stream breaks."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner
        self.name = inner.name

    async def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        event: ModelEvent | None = None
        with contextlib.suppress(RetryableModelError):
            async for event in self.inner.stream(request, prefix=prefix):
                yield event
        if not isinstance(event, StreamEnd):
            raise Killed


class Bench:
    """One adapter and its real client, on a recording."""

    def __init__(self, protocol: Protocol, backend: Backend) -> None:
        self.protocol = protocol
        self.backend = backend
        self.size = len(protocol.recorded())
        self.tape = Tape(protocol.recorded(), SCRIPT)
        http = httpx.AsyncClient(transport=self.tape, trust_env=False)
        self.client = protocol.client("http://127.0.0.1", http_client=http)
        self.model = protocol.adapter(self.client)
        self.valid: set[str] = set()
        """Turns whose next request was taken already."""

    async def check(self, cut: int, *, breaks: bool, dies: bool) -> Turn:
        """Cut the recording after ``cut`` bytes, recover, and go on with the conversation."""
        self.tape.play(self.protocol.dialect(), cut, breaks=breaks)
        task = f"{cut}-{breaks}-{dies}"
        history = [SYSTEM, QUESTION]
        if dies:
            with contextlib.suppress(Killed):
                await ask(self.backend, MortalModel(self.model), task, history)
        turn = await ask(self.backend, self.model, task, history)
        assert turn.message is not None
        text, calls = shown(turn)
        assert text == TEXT
        assert calls == CALLS or (calls == CALLS[:1] and len(self.tape.requests) == 1)
        history += [turn.message, *results_of(turn)]
        said = json.dumps([turn.message.content, self.tape.requests], sort_keys=True)
        if said in self.valid:
            return turn
        self.valid.add(said)
        after = await ask(self.backend, self.model, task, history)
        assert shown(after) == ("Bis bald.", [])
        return turn


@pytest.fixture
async def bench(protocol: Protocol, backend: Backend) -> AsyncIterator[Bench]:
    bench = Bench(protocol, backend)
    async with bench.client:
        yield bench


def events_of(data: bytes) -> list[int]:
    """Where the events of a recording end."""
    ends, at = [0], 0
    while (at := data.find(b"\n\n", at) + 2) > 1:
        ends.append(at)
    return ends


@pytest.mark.parametrize("dies", [False, True], ids=["same process", "next process"])
@pytest.mark.parametrize("breaks", [False, True], ids=["end", "error"])
async def test_a_recording_cut_after_any_event_gives_a_valid_history(
    bench: Bench, breaks: bool, dies: bool
) -> None:
    """However it is cut, and whichever process goes on."""
    kinds: set[RecoveryKind] = set()
    for cut in events_of(bench.protocol.recorded()):
        turn = await bench.check(cut, breaks=breaks, dies=dies)
        kinds.update(recovery.plan.kind for recovery in turn.recoveries)
    assert kinds == set(RecoveryKind)


@pytest.mark.slow
@pytest.mark.parametrize("part", SPREAD)
@pytest.mark.parametrize("protocol", [CHAT, RESPONSES, PREFILL, BUDGET], indirect=True, ids=NAME)
async def test_a_recording_cut_after_any_byte_gives_a_valid_history(
    bench: Bench, part: int
) -> None:
    """Half an event, half a character: nothing of it is ever part of the turn. All four ways of
    being cut take turns.
    """
    for cut in range(part, bench.size + 1, PARTS):
        breaks, dies = cut // PARTS % 2 == 0, cut // PARTS // 2 % 2 == 0
        await bench.check(cut, breaks=breaks, dies=dies)


async def test_an_uncut_recording_is_committed_as_it_is(bench: Bench) -> None:
    """One request; the reasoning lies before the text, in the form in which it goes back."""
    turn = await bench.check(bench.size, breaks=False, dies=False)
    assert turn.message is not None
    assert turn.recoveries == []
    assert turn.finish_reason == bench.protocol.finish_reason
    content: list[Any] = turn.message.content  # type: ignore[assignment]
    assert [block["type"] for block in content if block["type"] != "provider"] == [
        "text",
        "tool_call",
        "tool_call",
    ]
    reasons = bench.protocol.recording in ("responses", "thinking")
    assert (content[0]["type"] == "provider") is reasons


def test_the_rules_refuse() -> None:
    """A check that lets everything pass would show nothing."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(Refusal, match="no tool message"):
        check_chat({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]})
