"""The Chat Completions adapter with the real client, against a local server that misbehaves."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from stream_kit import rendered

from outlast import ApiMessage, Backend, MemoryBackend
from outlast.cli._chat_server import ChatServer, Fault, Reply, ScriptedCall, deltas
from outlast.providers import OpenAIChatCompletions
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

KEY = "sk-local-0123456789"
QUESTION = ModelRequest([ApiMessage(id="u1", role="user", content="Wie wird das Wetter?")])
REPLY = Reply(
    "Es regnet \U0001f327\ufe0f in Århus.", (ScriptedCall("c1", "find", '{"q": "ü"}'),), piece=3
)
CONTENT = [
    {"type": "text", "text": REPLY.text},
    {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": "ü"}},
]
EVENTS = len([*deltas(REPLY)]) + 1  # the last one says why it stops

Serve = Callable[..., ChatServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda script=(REPLY,), **options: stack.enter_context(ChatServer(script, **options))


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


@contextlib.asynccontextmanager
async def client_of(server: ChatServer, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, **options) as client:
        yield client


async def run(
    backend: Backend, client: openai.AsyncOpenAI, message_id: str = "m1", **policy: Any
) -> tuple[Turn, list[StreamEvent]]:
    context = RunContext(
        backend.persistence,
        task_id="t",
        run_id="r",
        message_id=message_id,
        claim=await backend.persistence.claim_task("t"),
        retry=RetryPolicy(**{"base_delay": 0.0, **policy}),
    ).with_stream_checkpoint(backend.checkpoints)
    turn = run_turn(context, OpenAIChatCompletions(client, "local"), QUESTION)
    async with turn:
        return turn, [event async for event in turn]


async def test_an_answer_is_committed_as_it_was_streamed(serve: Serve, backend: Backend) -> None:
    """Text, then the tool call; the request carried no prefix."""
    server = serve()
    async with client_of(server) as client:
        turn, events = await run(backend, client)
    assert turn.message is not None
    assert turn.message.content == CONTENT == rendered(events)
    assert turn.finish_reason == "tool_calls"
    (served,) = server.served
    assert served.outcome == "finished"
    assert served.body == {
        "model": "local",
        "messages": [{"role": "user", "content": "Wie wird das Wetter?"}],
        "stream": True,
    }


@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "utf-8"])
async def test_characters_may_be_split_at_every_byte(
    serve: Serve, backend: Backend, ascii_only: bool
) -> None:
    """Every byte comes alone, every UTF-16 unit in a delta of its own."""
    reply = Reply("Ä\u20ac\U0001f327\U0001d11e\ufe0fz", REPLY.tool_calls, piece=1)
    server = serve([reply], chunk_bytes=1, ascii_only=ascii_only)
    async with client_of(server) as client:
        turn, events = await run(backend, client)
    assert turn.message is not None
    assert turn.message.content == rendered(events)
    assert turn.message.content == [{"type": "text", "text": reply.text}, CONTENT[1]]
    assert turn.recoveries == []


@pytest.mark.parametrize("kind", ["cut", "eof", "error", "reset"])
async def test_a_stream_that_breaks_after_any_event_goes_on(
    serve: Serve, backend: Backend, kind: Any
) -> None:
    """Whatever way it breaks, the message equals the unbroken one, and every prefix is what was
    said.
    """
    server = serve()
    async with client_of(server) as client:
        for after in range(EVENTS):
            del server.served[:]
            server.faults.append(Fault(kind, after=after))
            turn, events = await run(backend, client, f"m{after}")
            assert turn.message is not None
            assert turn.message.content == CONTENT == rendered(events)
            assert len(turn.recoveries) == 1
            assert isinstance(turn.recoveries[0].error, RetryableModelError)
            prefix = turn.recoveries[0].plan.prefix
            assert [s.prefix for s in server.served][1:] == (
                [] if turn.recoveries[0].plan.kind == RecoveryKind.COMPLETE_CALLS else [prefix]
            )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut", "eof"])
async def test_a_stream_that_breaks_inside_an_event_goes_on(
    serve: Serve, backend: Backend, kind: Any
) -> None:
    """Half an event, half a character: nothing of it is ever part of the message."""
    reply = Reply("Ä\U0001f327", (ScriptedCall("c1", "f", '{"q": "ü"}'),), piece=9)
    server = serve([reply], ascii_only=False)
    content = [{"type": "text", "text": reply.text}, {**CONTENT[1], "name": "f"}]
    async with client_of(server) as client:
        after = 0
        while True:
            server.faults.append(Fault(kind, after_bytes=after))
            turn, _ = await run(backend, client, f"m{after}")
            assert turn.message is not None
            assert turn.message.content == content
            if server.served[-1].outcome == "finished" and not turn.recoveries:
                break
            after += 13
    assert after > 700


async def test_a_turn_survives_several_cuts_of_its_continuations(
    serve: Serve, backend: Backend
) -> None:
    """Each continuation begins where the last one was cut."""
    server = serve(faults=[Fault("cut", after=3), Fault("reset", after=3), Fault("eof", after=2)])
    async with client_of(server) as client:
        turn, _ = await run(backend, client)
    assert turn.message is not None
    assert turn.message.content == CONTENT
    text = REPLY.text
    assert [s.prefix for s in server.served] == ["", text[:6], text[:11], text[:14]]


@pytest.mark.parametrize(
    ("status", "headers", "hint"),
    [
        (429, {"retry-after-ms": "20"}, 0.02),
        (503, {"retry-after": "0.01"}, 0.01),
        (500, {}, None),
        (408, {}, None),
        (409, {}, None),
    ],
)
async def test_a_refusal_for_now_is_repeated_after_the_hint(
    serve: Serve, backend: Backend, status: int, headers: dict[str, str], hint: float | None
) -> None:
    """By the runtime, which waits as the server says; the SDK's own retries are off."""
    server = serve(faults=[Fault("status", status=status, headers=headers)])
    async with client_of(server, max_retries=7) as client:
        turn, _ = await run(backend, client)
    (recovery,) = turn.recoveries
    assert isinstance(recovery.error, RetryableModelError)
    assert recovery.error.retry_after == hint
    assert recovery.delay == (hint or 0.0)
    assert isinstance(recovery.error.__cause__, openai.APIStatusError)
    assert len(server.served) == 2


async def test_the_sdk_does_not_repeat_calls_itself(serve: Serve, backend: Backend) -> None:
    """One failed call is one request, whatever the client was made with."""
    server = serve(faults=[Fault("status", status=500)] * 9)
    async with client_of(server, max_retries=7) as client:
        with pytest.raises(RetryableModelError):
            await run(backend, client, max_retries=0)
        assert client.max_retries == 7
    assert len(server.served) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_for_good_is_raised(serve: Serve, backend: Backend, status: int) -> None:
    """Nothing is committed, and the key that the server echoes is not shown."""
    body = {"message": f"no: {KEY}", "type": "invalid_request_error"}
    server = serve(faults=[Fault("status", status=status, body=body)])
    async with client_of(server) as client:
        with pytest.raises(PermanentModelError, match=f"HTTP {status}: no: \\*\\*\\*") as caught:
            await run(backend, client)
    assert KEY not in str(caught.value)
    assert len(server.served) == 1
    assert await backend.persistence.load_api_messages("t") == []


async def test_an_error_in_the_stream_that_blames_the_request_is_raised(
    serve: Serve, backend: Backend
) -> None:
    """It is told by its type; what was said before stays in the checkpoint."""
    body = {"message": "bad", "type": "invalid_request_error", "code": "x"}
    server = serve(faults=[Fault("error", after=2, body=body)])
    async with client_of(server) as client:
        with pytest.raises(PermanentModelError, match="bad"):
            await run(backend, client)
    left = await backend.checkpoints.get("r")
    assert left is not None
    assert left.text == REPLY.text[:3]


async def test_a_server_that_falls_silent_is_left_after_the_timeout(
    serve: Serve, backend: Backend
) -> None:
    """The client's timeout is a retryable error, before the first event and between two."""
    server = serve(faults=[Fault("stall", after=0), Fault("stall", after=3)])
    async with client_of(server, timeout=0.2) as client:
        turn, _ = await run(backend, client)
    assert turn.message is not None
    assert turn.message.content == CONTENT
    assert len(turn.recoveries) == 2
    assert server.wait_for(
        lambda: [s.outcome for s in server.served] == ["disconnected", "disconnected", "finished"]
    )


async def test_a_server_that_is_not_there_is_a_retryable_error(backend: Backend) -> None:
    """It may be back soon."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            with pytest.raises(RetryableModelError, match="connection failed"):
                await run(backend, client, max_retries=0)


async def test_leaving_a_turn_early_hangs_up(serve: Serve, backend: Backend) -> None:
    """The server is not left talking to nobody."""
    server = serve(faults=[Fault("stall", after=3)])
    async with client_of(server) as client:
        context = RunContext(backend.persistence, task_id="t", run_id="r", message_id="m")
        async with run_turn(context, OpenAIChatCompletions(client, "local"), QUESTION) as turn:
            async for _ in turn:
                break
        gone = asyncio.to_thread(
            server.wait_for, lambda: server.served[0].outcome == "disconnected"
        )
        assert await gone
    assert turn.message is None


@pytest.mark.skipif(
    openai.__version__.startswith("2."), reason="the SDK closes its connections itself before 3.0"
)
async def test_finished_answers_leave_the_connection_usable(serve: Serve, backend: Backend) -> None:
    """One connection serves turn after turn."""
    server = serve()
    async with client_of(server) as client:
        for number in range(5):
            await run(backend, client, f"m{number}")
    assert server.connections == 1


async def test_what_comes_after_the_mark_of_the_end_cannot_spoil_the_turn(
    serve: Serve, backend: Backend
) -> None:
    """The connection breaks between the finish reason and the protocol's last word."""
    server = serve(faults=[Fault("cut", after=EVENTS)])
    async with client_of(server) as client:
        turn, _ = await run(backend, client)
    assert turn.recoveries == []
    assert turn.message is not None
    assert turn.message.content == CONTENT


async def test_the_server_runs_as_a_process_of_its_own(backend: Backend, tmp_path: Path) -> None:
    """Its replies come from a file, its first line says where it is."""
    replies = tmp_path / "replies.json"
    calls = [{"id": "c1", "name": "find", "arguments": '{"q": "ü"}'}]
    replies.write_text(json.dumps([{"text": REPLY.text, "tool_calls": calls}]), encoding="utf-8")
    command = [sys.executable, "-m", "outlast.cli._chat_server", str(replies)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            turn, _ = await run(backend, client)
    finally:
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert turn.message is not None
    assert turn.message.content == CONTENT


async def test_a_conversation_with_results_is_understood(serve: Serve, backend: Backend) -> None:
    """The second turn sees the first one's call and its result, in the API's form."""
    server = serve([REPLY, Reply("Ja.")])
    async with client_of(server) as client:
        first, _ = await run(backend, client)
        assert first.message is not None
        result = {"type": "tool_result", "call_id": "c1", "content": {"mm": 3}, "is_error": False}
        history = [
            *QUESTION.messages,
            first.message,
            ApiMessage(id="r1", role="tool", content=[result]),
        ]
        context = RunContext(backend.persistence, task_id="t2", run_id="r2", message_id="m2")
        model = OpenAIChatCompletions(client, "local", temperature=0)
        async with run_turn(context, model, ModelRequest(history)) as turn:
            async for _ in turn:
                pass
    assert turn.message is not None
    assert turn.message.content == [{"type": "text", "text": "Ja."}]
    body = server.served[-1].body
    assert body["temperature"] == 0
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"q":"ü"}'
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": '{"mm":3}'}
