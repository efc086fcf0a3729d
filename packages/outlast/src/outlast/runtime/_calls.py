"""Running the tool calls of a turn: each at most once, unless it is said that it may run again."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from outlast.errors import FencedError, InvalidDataError, shown
from outlast.model_api import ToolCallBlock
from outlast.models import ApiMessage, TaskInput, ToolInfo, UserMessage
from outlast.runtime._core import Core, log, utc_now
from outlast.runtime._subtasks import PausedError, StoppedError, Subtasks
from outlast.runtime.callbacks import Answer, InterruptedCall
from outlast.runtime.history import ABORTED, INTERRUPTED, NOT_RUN, result_message
from outlast.runtime.merging import copy_json
from outlast.runtime.tools import SubtaskResult, Tool, ToolContext


class Calls:
    """The tool calls of a task's last turn.

    Before a call begins, a card is stored that says so; when it has ended, its result. A call with
    a card and no result may have taken effect.
    """

    def __init__(self, core: Core, subtasks: Subtasks) -> None:
        self._core = core
        self._subtasks = subtasks
        self._not_begun: set[str] = set()
        self.is_running = False
        """Whether a tool is at work."""

    def explain_end(self, name: str) -> str:
        """What became of an open call when the task ended."""
        return ABORTED if self._has_begun(name) else NOT_RUN

    def _has_begun(self, name: str) -> bool:
        """Whether the call of this card may have run."""
        has_card = self._core.messages.get_user_message(name) is not None
        return has_card and name not in self._not_begun

    def interrupted(self) -> list[InterruptedCall]:
        """The open calls that had begun."""
        message, calls = self._core.open_calls()
        return [
            self._describe(message, place, call)
            for place, call in calls.items()
            if message is not None and self._has_begun(self._core.card_id(message.id, place))
        ]

    def _describe(self, message: ApiMessage, place: int, call: ToolCallBlock) -> InterruptedCall:
        return InterruptedCall(
            task_id=self._core.task_id,
            message_id=message.id,
            call_id=call["id"],
            tool=call["name"],
            arguments=copy_json(call["arguments"]),
            idempotency_key=self._core.idempotency_key(message.id, place, call["id"]),
        )

    async def settle(self) -> None:
        """Give every open call its result, in order; stop between two if the task is pausing.

        Raises:
            PausedError: It is for somebody else to decide how to go on.
            FencedError: The task has a newer owner.
            OutlastError: The store did not do it.
        """
        message, calls = self._core.open_calls()
        if message is None:
            return
        if calls and not self._core.messages.is_in_round:
            self._core.messages.start_round(at=message.id)
        for place, call in calls.items():
            if self._core.is_pausing:
                return
            await self._settle(message, place, call)
        self._subtasks.leave_waiting()

    async def _settle(self, message: ApiMessage, place: int, call: ToolCallBlock) -> None:
        core = self._core
        name = core.card_id(message.id, place)
        tool = core.agent.tools.get(call["name"])
        is_rerun = self._has_begun(name)
        if tool is None:
            known = ", ".join(core.agent.tools) or "none"
            text = f"There is no tool {call['name']!r}. Tools: {known}."
            await self._record(name, call, text, is_error=True)
            return
        if is_rerun:
            results = None
            if tool.on_interrupted != "rerun":
                results = await self._subtasks.resume(message.id, place)
            if results is not None:
                content = [_text_of_result(result) for result in results]
                is_error = any(_is_bad(result) for result in results)
                await self._record(
                    name, call, content[0] if len(content) == 1 else content, is_error=is_error
                )
                return
            if await self._decide(message, place, call, tool) == "skip":
                await self._record(name, call, INTERRUPTED, is_error=True)
                return
            self._show_running(name)
        elif name not in self._not_begun:
            self._not_begun.add(name)
            core.add_user(
                UserMessage(
                    id=name,
                    type="tool",
                    role="assistant",
                    tool_info=ToolInfo(call["id"], call["name"], arguments=call["arguments"]),
                    ts=utc_now(),
                )
            )
        if not is_rerun:
            await core.messages.append_user_messages_now()
            self._not_begun.discard(name)
        content, is_error = await self._run(message, place, call, tool, is_rerun=is_rerun)
        await self._record(name, call, content, is_error=is_error)

    async def _decide(
        self, message: ApiMessage, place: int, call: ToolCallBlock, tool: Tool
    ) -> Answer:
        policy = tool.on_interrupted or self._core.agent.on_interrupted
        if policy != "ask":
            return policy
        ask = self._core.callbacks.ask
        if ask is None:
            raise PausedError(
                f"the call {call['id']!r} of {call['name']!r} was interrupted, and there is no "
                "callback 'ask' to decide about it"
            )
        answer = await ask(self._describe(message, place, call))
        if answer not in ("rerun", "skip"):
            raise InvalidDataError(f"ask must answer 'rerun' or 'skip', not {shown(answer)}")
        return answer

    async def _run(
        self, message: ApiMessage, place: int, call: ToolCallBlock, tool: Tool, *, is_rerun: bool
    ) -> tuple[Any, bool]:
        """Run the tool; return its result, and whether that is an error."""
        core = self._core
        count = 0

        async def run_subtask(
            task_input: str | TaskInput, agent: str | None, context: Mapping[str, Any] | None
        ) -> SubtaskResult:
            nonlocal count
            number, count = count, count + 1
            return await self._subtasks.run((message.id, place, number), task_input, agent, context)

        context = ToolContext(
            task_id=core.task_id,
            message_id=message.id,
            call_id=call["id"],
            idempotency_key=core.idempotency_key(message.id, place, call["id"]),
            is_rerun=is_rerun,
            context=copy_json(core.states.state.context),
            claim=core.claim,
            persistence=core.persistence,
            run_subtask=run_subtask,
        )
        seconds = core.agent.tool_timeout if tool.timeout is None else tool.timeout
        current = asyncio.current_task()
        assert current is not None
        cancels = current.cancelling()
        limit = asyncio.timeout(seconds)
        self.is_running = True
        try:
            async with limit:
                return await tool(copy_json(call["arguments"]), context), False
        except asyncio.CancelledError:
            if current.cancelling() > cancels:
                raise
            return "The tool was cancelled.", True
        except Exception as error:  # noqa: BLE001 - the model is told, and may try otherwise
            for inner in _leaves(error):
                if isinstance(inner, StoppedError):
                    raise inner.reason from inner
                if isinstance(inner, PausedError):
                    raise inner from None
                if isinstance(inner, FencedError):
                    await core.persistence.check_claim(core.claim)
            if limit.expired():
                return f"The tool gave no result within {seconds:g} s.", True
            return self._explain(call, error), True
        finally:
            self.is_running = False

    def _explain(self, call: ToolCallBlock, error: Exception) -> str:
        texts: list[str] = []
        for inner in _leaves(error):
            text = inner.message if isinstance(inner, InvalidDataError) else str(inner)
            texts.append(f"{type(inner).__name__}: {text}".encode(errors="replace").decode())
        text = "; ".join(texts)
        log.warning("task %r: the tool %r failed: %s", self._core.task_id, call["name"], text)
        return text

    async def _record(
        self, name: str, call: ToolCallBlock, content: Any, *, is_error: bool
    ) -> None:
        """Store a call's result, and show it."""
        core = self._core
        message = result_message(name, call["id"], content, is_error=is_error)
        limit = core.agent.max_result_bytes
        size = len(msgspec.json.encode(content))
        if size > limit:
            text = f"The tool's result has {size} bytes, more than the limit of {limit}."
            message = result_message(name, call["id"], text, is_error=True)
            content, is_error = text, True
        core.add_api(message)
        core.show_result(name, content, is_error=is_error)
        await core.messages.save_api_messages_now()

    def _show_running(self, name: str) -> None:
        card = self._core.messages.get_user_message(name)
        if card is not None and card.tool_info is not None:
            info = msgspec.structs.replace(card.tool_info, status="running", error=None)
            self._core.update_user(name, tool_info=info)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group of errors, or the one error."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_bad(result: SubtaskResult) -> bool:
    return result.state.error is not None or result.state.status.value != "completed"


def _text_of_result(result: SubtaskResult) -> str:
    if not _is_bad(result):
        return result.text
    error = result.state.error or {}
    return f"The sub-task was {result.state.status.value}: {error.get('message', 'no reason')}."


__all__ = ["Calls"]
