"""Background responses: a cut stream is taken up again, and nothing is asked twice."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from protocol_kit import ResponsesDialect
from test_provider_protocols import CALLS, QUESTION, REPLY, SCRIPT, TEXT, Talk, said
from wire_kit import RESPONSES, Client

from outlast import Backend, MemoryBackend
from outlast.cli._model_server import Fault, ModelServer
from outlast.runtime import ModelRequest, RecoveryKind


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(ResponsesDialect(), SCRIPT) as server:
        yield server


@pytest.fixture
async def client(server: ModelServer) -> AsyncIterator[Client]:
    async with RESPONSES.at(server) as client:
        yield client


def asked(server: ModelServer) -> list[int | None]:
    """The requests: behind which event the response was taken up; ``None``: one was begun."""
    queries = [parse_qs(urlsplit(served.path).query) for served in server.served]
    return [int(query["starting_after"][0]) if query else None for query in queries]


async def test_a_cut_stream_is_taken_up_behind_the_last_text(
    server: ModelServer, client: Client, backend: Backend
) -> None:
    """After any event, several times; calls that were open come again as a whole."""
    talk = Talk(RESPONSES, backend, client, background=True)
    for after in range(1, 30):
        del server.served[:]
        server.faults.extend([Fault("cut", after=after), Fault("error", after=2)])
        turn, _ = await talk.turn(f"m{after}")
        server.faults.clear()
        if any(found.plan.kind is RecoveryKind.COMPLETE_CALLS for found in turn.recoveries):
            assert said(turn) in ([TEXT, *CALLS], [TEXT, CALLS[0]])
        else:
            assert said(turn) == [TEXT, *CALLS]
        # The second fault is an error of the response itself: it is not gone back to.
        first, *others = asked(server)
        assert first is None
        assert others == [] or (others[0] is not None and others[0] < after)
        assert others[1:] in ([], [None])


async def test_only_what_comes_next_is_sent_again(
    server: ModelServer, client: Client, backend: Backend
) -> None:
    """The stream begins behind the event with the last text of the turn."""
    server.faults.extend([Fault("cut", after=11), Fault("cut", after=2)])
    turn, _ = await Talk(RESPONSES, backend, client, background=True).turn()
    assert said(turn) == [TEXT, *CALLS]
    assert asked(server) == [None, 10, 12]
    assert [plan.plan.kind for plan in turn.recoveries] == [RecoveryKind.CONTINUE_TEXT] * 2


async def test_a_response_that_is_gone_is_asked_for_anew(
    server: ModelServer, client: Client, backend: Backend
) -> None:
    """The rest is asked for, as without ``background``."""
    dialect: Any = server.dialect
    dialect.expired.add("resp_1")
    server.faults.append(Fault("cut", after=11))
    turn, _ = await Talk(RESPONSES, backend, client, background=True).turn()
    assert said(turn) == [TEXT, *CALLS]
    assert asked(server) == [None, 10, None]
    assert REPLY.text.startswith(server.served[2].prefix)
    assert server.served[2].prefix


async def test_a_response_is_gone_back_to_for_its_own_request_only(
    server: ModelServer, client: Client, backend: Backend
) -> None:
    """An equal question that is asked again is another question."""
    talk = Talk(RESPONSES, backend, client, background=True)
    server.faults.append(Fault("cut", after=11))
    turn, _ = await talk.turn()
    await talk.turn("m2", ModelRequest(list(QUESTION.messages)))
    assert said(turn) == [TEXT, *CALLS]
    assert asked(server) == [None, 10, None]


async def test_without_background_nothing_is_gone_back_to(
    server: ModelServer, client: Client, backend: Backend
) -> None:
    """The API ends such a response with its stream."""
    server.faults.append(Fault("cut", after=11))
    turn, _ = await Talk(RESPONSES, backend, client).turn()
    assert said(turn) == [TEXT, *CALLS]
    assert asked(server) == [None, None]
