"""Random work on both managers over a store that fails now and then: nothing is lost or doubled."""

import asyncio
import contextlib
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from runtime_kit import Watched, run_virtually

from outlast import (
    ApiMessage,
    OutcomeUnknownError,
    UnavailableError,
    UserMessage,
    open_backend,
)
from outlast.runtime import MessageManager, StateManager

FAULTS = ["before", "after", None]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("api"), st.integers(1, 3)),
        st.tuples(st.just("user"), st.integers(1, 3)),
        st.tuples(st.just("change"), st.integers(0, 9)),
        st.tuples(st.just("state"), st.integers(0, 9)),
        st.tuples(st.just("sleep"), st.sampled_from([0, 300, 800, 1200, 1200, 6000])),
        st.tuples(st.just("yield"), st.integers(1, 5)),
        st.tuples(st.just("save"), st.booleans()),
        st.tuples(st.just("append"), st.booleans()),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("round"), st.booleans()),
        st.tuples(st.just("roll back"), st.just(0)),
        st.tuples(st.just("fault"), st.sampled_from(FAULTS)),
    ),
    min_size=3,
    max_size=25,
)


class World:
    """A claimed task, its managers, and what they should hold."""

    def __init__(self, store: Watched, claim: Any, *, is_slow: bool) -> None:
        self.store: Any = store
        self.claim = claim
        self.messages = MessageManager("t", self.store, claim=claim)
        self.state = StateManager("t", self.store, claim=claim)
        self.count = 0
        self.fault: str | None = None
        self.is_slow = is_slow
        store.before = self.before
        store.after = self.after

    async def before(self, name: str) -> None:
        if self.is_slow:
            await asyncio.sleep(0.7)
        if self.fault == "before":
            raise UnavailableError("away")

    async def after(self, name: str) -> None:
        if self.is_slow:
            await asyncio.sleep(0.7)
        if self.fault == "after":
            raise OutcomeUnknownError("no answer")

    async def do(self, step: str, value: Any) -> None:
        match step:
            case "api" | "user":
                for _ in range(value):
                    self.count += 1
                    if step == "api":
                        message = ApiMessage(id=f"a{self.count}", role="user", content="x")
                        self.messages.add_api_message(message)
                    else:
                        self.messages.add_user_message(
                            UserMessage(id=f"u{self.count}", type="t", role="user", content="x")
                        )
            case "change":
                users = self.messages.user_messages
                if users:
                    self.count += 1
                    name = users[value % len(users)].id
                    self.messages.update_user_message(name, content=f"changed {self.count}")
            case "state":
                self.state.update_state(context={"n": value}, retry_count=value)
            case "sleep":
                await asyncio.sleep(value / 1000)
            case "yield":
                for _ in range(value):
                    await asyncio.sleep(0)
            case "save":
                await self.messages.save_now()
                await self.state.save_state_now()
            case "append":
                waiting = asyncio.create_task(self.messages.append_user_messages_now())
                if value:
                    await waiting
                else:  # As a caller who gives up.
                    await asyncio.wait({waiting}, timeout=0.3)
                    waiting.cancel()
            case "commit" if self.fault != "after":
                await self.messages.save_api_messages_now()
                self.count += 1
                message = ApiMessage(id=f"c{self.count}", role="assistant", content="y")
                await self.store.append_api_message("t", message, claim=self.claim)
                self.messages.adopt_api_message(message)
            case "round":
                if value:
                    self.messages.start_round()
                else:
                    self.messages.end_round()
            case "roll back":
                await self.messages.rollback_current_round()
            case "fault":
                self.fault = value


@settings(max_examples=500)
@example(
    # A message whose append went unanswered has changed: it cannot be appended again.
    [
        ("fault", "after"),
        ("user", 1),
        ("sleep", 1200),
        ("fault", None),
        ("change", 0),
        ("append", True),
    ],
    False,
)
@given(STEPS, st.booleans())
def test_the_store_ends_as_memory_is(steps: list[tuple[str, Any]], is_slow: bool) -> None:
    """Whatever failed on the way: same messages, same order, same state."""

    async def main() -> None:
        async with open_backend("memory://") as backend:
            claim = await backend.persistence.claim_task("t")
            world = World(Watched(backend.persistence), claim, is_slow=is_slow)
            for step, value in steps:
                with contextlib.suppress(UnavailableError, OutcomeUnknownError):
                    await world.do(step, value)
                assert world.store.most_in_flight <= 1
            world.fault = None
            await asyncio.sleep(100)
            assert not world.messages.is_dirty
            assert not world.state.is_dirty
            await world.messages.aclose()
            await world.state.aclose()
            tasks = backend.persistence
            assert await tasks.load_user_messages("t") == world.messages.user_messages
            kept = [m for m in await tasks.load_api_messages("t") if m.id[0] == "a"]
            assert kept == [m for m in world.messages.api_messages if m.id[0] == "a"]
            state = await tasks.load_task_state("t")
            assert (state.retry_count if state else 0) == world.state.state.retry_count

    run_virtually(main())
