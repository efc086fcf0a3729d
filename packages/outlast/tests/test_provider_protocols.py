"""Every adapter with the real client of its SDK, against a local server that misbehaves."""

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import formatdate
from operator import attrgetter
from time import time
from typing import Any

import openai
import pytest
from stream_kit import rendered
from wire_kit import (
    ADAPTIVE,
    BUDGET,
    CHAT,
    KEY,
    MESSAGES,
    PROTOCOLS,
    RESPONSES,
    Client,
    Protocol,
)

from outlast import ApiMessage, Backend, MemoryBackend
from outlast.cli._model_server import Fault, ModelServer, Reply, ScriptedCall
from outlast.runtime import (
    ModelRequest,
    PermanentModelError,
    RecoveryKind,
    RetryableModelError,
    RetryPolicy,
    RunContext,
    StreamEvent,
    Turn,
    run_turn,
)

QUESTION = ModelRequest([ApiMessage(id="u1", role="user", content="Wie wird das Wetter?")])
REPLY = Reply(
    "Es \n\n regnet \U0001f327\ufe0f in Århus.",
    (ScriptedCall("c1", "find", '{"q": "ü"}'), ScriptedCall("c2", "find", '{"q": 1}')),
    reasoning="Hm \U0001f327.",
    piece=5,
)
TEXT = {"type": "text", "text": REPLY.text}
CALLS = [
    {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": "ü"}},
    {"type": "tool_call", "id": "c2", "name": "find", "arguments": {"q": 1}},
]
SCRIPT = [REPLY, Reply("Ja.", reasoning="So.")]
NAME = attrgetter("name")
Serve = Callable[..., ModelServer]


@pytest.fixture(params=PROTOCOLS, ids=NAME)
def protocol(request: pytest.FixtureRequest) -> Protocol:
    found: Protocol = request.param
    return found


@pytest.fixture
def serve(protocol: Protocol) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda script=SCRIPT, **options: stack.enter_context(
            ModelServer(protocol.dialect(), script, **options)
        )


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


class Talk:
    """A conversation of one task."""

    def __init__(self, protocol: Protocol, backend: Backend, client: Client, **params: Any) -> None:
        self.model = protocol.adapter(client, **params)
        self.backend = backend

    async def turn(
        self, message_id: str = "m1", request: ModelRequest = QUESTION, **policy: Any
    ) -> tuple[Turn, list[StreamEvent]]:
        context = RunContext(
            self.backend.persistence,
            task_id="t",
            run_id="r",
            message_id=message_id,
            claim=await self.backend.persistence.claim_task("t"),
            retry=RetryPolicy(**{"base_delay": 0.0, **policy}),
        ).with_stream_checkpoint(self.backend.checkpoints)
        async with run_turn(context, self.model, request) as turn:
            return turn, [event async for event in turn]

    async def answer(self, turn: Turn) -> None:
        """Hand in what the tools gave, and take the model's last word."""
        assert turn.message is not None
        history = [*QUESTION.messages, turn.message]
        for call in said(turn)[1:]:
            content = [{"type": "tool_result", "call_id": call["id"], "content": {"mm": 3}}]
            history.append(ApiMessage(id=call["id"], role="tool", content=content))
        after, _ = await self.turn(f"{turn.message.id}-after", ModelRequest(history))
        assert said(after) == [{"type": "text", "text": "Ja."}]


def said(turn: Turn) -> list[dict[str, Any]]:
    """What was committed, apart from what goes back to the provider."""
    assert turn.message is not None
    content: Any = turn.message.content
    return [block for block in content if block["type"] != "provider"]


async def test_an_answer_is_committed_as_it_was_streamed(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """And it is understood when it comes back with the tools' results."""
    server = serve()
    async with protocol.at(server) as client:
        talk = Talk(protocol, backend, client)
        turn, events = await talk.turn()
        assert said(turn) == [TEXT, *CALLS] == rendered(events)
        assert turn.finish_reason == protocol.finish_reason
        assert turn.recoveries == []
        await talk.answer(turn)
    # Its thread notes it behind the last byte, which the client has by then.
    assert server.wait_for(lambda: [s.outcome for s in server.served] == ["finished"] * 2)


@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "utf-8"])
async def test_characters_may_be_split_at_every_byte(
    protocol: Protocol, serve: Serve, backend: Backend, ascii_only: bool
) -> None:
    """Every byte comes alone, every UTF-16 unit in a delta of its own; reasoning too."""
    reply = Reply("Ä€\U0001f327\U0001d11e\ufe0fz", REPLY.tool_calls[:1], reasoning="\U0001f327")
    server = serve([Reply(**{**vars(reply), "piece": 1}), SCRIPT[1]], chunk_bytes=1)
    server.ascii_only = ascii_only
    async with protocol.at(server) as client:
        talk = Talk(protocol, backend, client)
        turn, events = await talk.turn()
        assert said(turn) == [{"type": "text", "text": reply.text}, CALLS[0]] == rendered(events)
        assert turn.recoveries == []
        await talk.answer(turn)


@pytest.mark.parametrize(
    "kind",
    ["cut", "error", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("eof", "reset"))],
)
async def test_a_stream_that_breaks_after_any_event_goes_on(
    protocol: Protocol, serve: Serve, backend: Backend, kind: Any
) -> None:
    """Whatever way it breaks, every request on the way obeys the provider's rules, and every prefix
    is what was said.
    """
    server = serve()
    kinds: set[RecoveryKind] = set()
    async with protocol.at(server) as client:
        talk = Talk(protocol, backend, client)
        after = 0
        while not server.faults:
            server.faults.append(Fault(kind, after=after))
            del server.served[:]
            turn, events = await talk.turn(f"m{after}")
            if not turn.recoveries:
                break
            (recovery,) = turn.recoveries
            assert isinstance(recovery.error, RetryableModelError)
            kinds.add(recovery.plan.kind)
            assert said(turn) == rendered(events)
            if recovery.plan.calls_model:
                assert said(turn) == [TEXT, *CALLS]
                prefix = recovery.plan.prefix
                assert server.served[1].prefix in (prefix, prefix.rstrip())
            else:
                assert said(turn) in ([TEXT, *CALLS], [TEXT, CALLS[0]])
            await talk.answer(turn)
            after += 1
    assert after > 15
    if kind != "reset":  # It may take back what was sent before.
        assert kinds == set(RecoveryKind)


async def test_a_turn_survives_many_cuts_of_its_continuations(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """Each continuation begins where the last one was cut, white space included."""
    reply = Reply("Eins,  zwei \n\n  drei\n\tvier \U0001f327 f\xfcnf. ", REPLY.tool_calls, piece=1)
    rng = random.Random(f"cuts of {protocol.name}")
    faults = [Fault("cut", after=rng.randrange(6, 12)) for _ in range(12)]
    server = serve([reply, SCRIPT[1]], faults=faults)
    async with protocol.at(server) as client:
        talk = Talk(protocol, backend, client)
        turn, events = await talk.turn(max_retries=12)
        content = [{"type": "text", "text": reply.text}, *CALLS]
        assert said(turn) == content == rendered(events)
        assert len(turn.recoveries) == 12
        server.faults.clear()
        await talk.answer(turn)


@pytest.mark.parametrize(
    ("status", "headers", "hint"),
    [
        (429, {"retry-after-ms": "20"}, 0.02),
        (429, {"retry-after-ms": "20", "retry-after": "9"}, 0.02),
        (529, {"retry-after": "0.01"}, 0.01),
        (503, {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        (500, {}, None),
        (408, {}, None),
        (409, {}, None),
        (400, {"x-should-retry": "true"}, None),
    ],
)
async def test_a_refusal_for_now_is_repeated_after_the_hint(
    protocol: Protocol,
    serve: Serve,
    backend: Backend,
    status: int,
    headers: dict[str, str],
    hint: float | None,
) -> None:
    """By the runtime, which waits as the server says; the SDK's own retries are off."""
    server = serve(faults=[Fault("status", status=status, headers=headers)])
    async with protocol.at(server, max_retries=7) as client:
        turn, _ = await Talk(protocol, backend, client).turn()
        assert client.max_retries == 7
    (recovery,) = turn.recoveries
    assert isinstance(recovery.error, RetryableModelError)
    assert recovery.error.retry_after == hint
    assert recovery.delay == (hint or 0.0)
    assert len(server.served) == 2


async def test_no_hint_makes_a_turn_wait_longer_than_a_minute(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """Given in seconds, milliseconds or as a date."""
    hints = [
        {"retry-after": "86400"},
        {"retry-after-ms": "86400000"},
        {"retry-after": formatdate(time() + 86400, usegmt=True)},
        {"retry-after": formatdate(time() + 55, usegmt=True)},
    ]
    server = serve(faults=[Fault("status", status=429, headers=hint) for hint in hints])
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with protocol.at(server) as client:
        context = RunContext(backend.persistence, task_id="t", run_id="r", message_id="m")
        model = protocol.adapter(client)
        async with run_turn(context, model, QUESTION, sleep=sleep) as turn:
            async for _ in turn:
                pass
    assert waits[:3] == [60.0] * 3
    assert 25 < waits[3] <= 55


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        *[(status, {}, None) for status in (400, 401, 403, 404, 413, 422)],
        (429, {"x-should-retry": "false"}, None),
        (500, {"x-should-retry": "false"}, None),
        (429, {}, "insufficient_quota"),
    ],
)
async def test_a_refusal_for_good_is_raised(
    protocol: Protocol,
    serve: Serve,
    backend: Backend,
    status: int,
    headers: dict[str, str],
    code: str | None,
) -> None:
    """Nothing is committed, and the key that the server echoes is not shown."""
    body = {"message": f"no: {KEY}", "type": "invalid_request_error", "code": code}
    server = serve(faults=[Fault("status", status=status, headers=headers, body=body)])
    async with protocol.at(server) as client:
        with pytest.raises(PermanentModelError, match=f"HTTP {status}: no: \\*\\*\\*") as caught:
            await Talk(protocol, backend, client).turn()
    assert KEY not in str(caught.value)
    assert len(server.served) == 1
    assert await backend.persistence.load_api_messages("t") == []


async def test_an_error_in_the_stream_that_blames_the_request_is_raised(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """It is told by its type or code; what was said before stays in the checkpoint."""
    body = {"message": f"bad {KEY}", "type": "invalid_request_error"}
    server = serve(faults=[Fault("error", after=14, body=body)])
    async with protocol.at(server) as client:
        with pytest.raises(PermanentModelError, match=r"in mid-stream: bad"):
            await Talk(protocol, backend, client).turn()
    left = await backend.checkpoints.get("r")
    assert left is not None
    assert left.text
    assert REPLY.text.startswith(left.text)


async def test_a_server_that_falls_silent_is_left_after_the_timeout(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """The client's timeout is a retryable error, before the first event and between two."""
    server = serve(faults=[Fault("stall", after=0), Fault("stall", after=9)])
    async with protocol.at(server, timeout=0.25) as client:
        turn, _ = await Talk(protocol, backend, client).turn(max_retries=50)
    assert said(turn) == [TEXT, *CALLS]
    # More than these two, if the machine itself falls silent for so long.
    assert len(turn.recoveries) >= 2
    assert server.wait_for(lambda: all(s.outcome == "disconnected" for s in server.served[:2]))
    assert server.wait_for(lambda: server.served[-1].outcome == "finished")


async def test_a_server_that_is_not_there_is_a_retryable_error(
    protocol: Protocol, backend: Backend
) -> None:
    """It may be back soon."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        async with protocol.client(url) as client:
            with pytest.raises(RetryableModelError, match="connection failed"):
                await Talk(protocol, backend, client).turn(max_retries=0)


async def test_leaving_a_turn_early_hangs_up(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """The server is not left talking to nobody."""
    server = serve([Reply("abcdefghij", piece=1)], faults=[Fault("stall", after=10)])
    async with protocol.at(server) as client:
        context = RunContext(backend.persistence, task_id="t", run_id="r", message_id="m")
        async with run_turn(context, protocol.adapter(client), QUESTION) as turn:
            async for _ in turn:
                break
        gone = asyncio.to_thread(
            server.wait_for, lambda: server.served[0].outcome == "disconnected"
        )
        assert await gone
    assert turn.message is None


async def test_finished_answers_leave_the_connection_usable(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """One connection serves turn after turn."""
    if not protocol.is_anthropic and openai.__version__.startswith("2."):
        pytest.skip("the SDK closes its connections itself before 3.0")
    server = serve([REPLY])
    async with protocol.at(server) as client:
        talk = Talk(protocol, backend, client)
        for number in range(4):
            await talk.turn(f"m{number}")
    assert server.connections == 1


async def test_what_comes_after_the_mark_of_the_end_cannot_spoil_the_turn(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """The connection breaks between the reason to stop and the protocol's last word."""
    server = serve()
    async with protocol.at(server) as client:
        talk = Talk(protocol, backend, client)
        await talk.turn()
        assert server.wait_for(lambda: server.served[0].outcome != "pending")
        sent = server.served[0].sent - (protocol is not RESPONSES)
        server.faults.append(Fault("cut", after=sent))
        turn, _ = await talk.turn("m2")
    assert turn.recoveries == []
    assert said(turn) == [TEXT, *CALLS]


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [(CHAT, "length"), (RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens")],
    ids=["chat", "responses", "messages"],
)
async def test_a_limit_is_an_end_like_any_other(
    protocol: Protocol, serve: Serve, backend: Backend, reason: str
) -> None:
    """The application sees it in the provider's words."""
    server = serve([Reply("Es reg", finish_reason=reason)])
    async with protocol.at(server) as client:
        turn, _ = await Talk(protocol, backend, client).turn()
    assert said(turn) == [{"type": "text", "text": "Es reg"}]
    assert turn.finish_reason == reason
    assert turn.recoveries == []


@pytest.mark.parametrize("protocol", [RESPONSES, ADAPTIVE, BUDGET, CHAT], indirect=True, ids=NAME)
async def test_reasoning_goes_back_with_a_turn_that_ran_uncut(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """Stored with the turn, unchanged, and never shown."""
    server = serve()
    async with protocol.at(server) as client:
        talk = Talk(protocol, backend, client)
        turn, events = await talk.turn()
        await talk.answer(turn)
    assert REPLY.reasoning not in json.dumps(rendered(events))
    assert turn.message is not None
    stored = await backend.persistence.load_api_messages("t")
    assert stored[0].content == turn.message.content
    sent = json.dumps(server.served[1].body, ensure_ascii=False)
    assert REPLY.reasoning in sent


@pytest.mark.parametrize("protocol", [ADAPTIVE, BUDGET], indirect=True, ids=NAME)
async def test_a_turn_that_was_continued_has_no_thinking(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """With a budget, the API lets the model think again once the tools' results are answered."""
    server = serve(faults=[Fault("cut", after=14)])
    async with protocol.at(server) as client:
        talk = Talk(protocol, backend, client)
        turn, _ = await talk.turn()
        assert turn.recoveries[0].plan.calls_model
        assert turn.message is not None
        assert turn.message.content == [TEXT, *CALLS]
        await talk.answer(turn)
    bodies = [served.body for served in server.served]
    given = protocol.params.get("thinking")
    after = {"type": "disabled"} if protocol is BUDGET else given
    assert [body.get("thinking") for body in bodies] == [given, given, after]
