"""Tools: asynchronous functions that a model may call, described to it by their type hints."""

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, overload

import msgspec

from outlast.contracts import Claim, PersistenceManager
from outlast.errors import InvalidDataError, shown
from outlast.model_api import ToolSpec
from outlast.models import TaskInput, TaskState
from outlast.runtime.merging import with_lists
from outlast.values import check_json

InterruptionPolicy = Literal["rerun", "skip", "ask"]
"""What becomes of a call that had begun when its process died: run it again, answer it with an
error, or ask.
"""

POLICIES: tuple[InterruptionPolicy, ...] = ("rerun", "skip", "ask")


class SubtaskResult(msgspec.Struct, frozen=True):
    """What became of a sub-task.

    Attributes:
        task_id: Of the sub-task.
        state: Its final state.
        text: Its answer: the text of its last message.
    """

    task_id: str
    state: TaskState
    text: str


RunSubtask = Callable[
    ["str | TaskInput", "str | None", "Mapping[str, Any] | None"], Awaitable[SubtaskResult]
]


class ToolContext:
    """What a tool may know and do beside its arguments: a parameter annotated with this class gets
    it, and the model does not see that parameter.

    Attributes:
        task_id: The task.
        message_id: The message that made the call.
        call_id: The call, in the provider's words.
        idempotency_key: 64 hexadecimal digits made of task, message and call: the same for the
            same call in every process. Pass it on to whatever must not happen twice.
        is_rerun: Whether the call may have run before.
        context: The task's context; a copy.
        claim: Of the task.
    """

    def __init__(
        self,
        *,
        task_id: str,
        message_id: str,
        call_id: str,
        idempotency_key: str,
        is_rerun: bool,
        context: dict[str, Any],
        claim: Claim | None,
        persistence: PersistenceManager,
        run_subtask: RunSubtask,
    ) -> None:
        self.task_id: str = task_id
        self.message_id: str = message_id
        self.call_id: str = call_id
        self.idempotency_key: str = idempotency_key
        self.is_rerun: bool = is_rerun
        self.context: dict[str, Any] = context
        self.claim: Claim | None = claim
        self._persistence = persistence
        self._run_subtask = run_subtask

    async def check_claim(self) -> None:
        """Ask the store whether this process still owns the task; before an effect that cannot be
        undone.

        Raises:
            FencedError: It does not. Let it pass: it ends the task in this process.
        """
        if self.claim is not None:
            await self._persistence.check_claim(self.claim)

    async def run_subtask(
        self,
        task_input: str | TaskInput,
        *,
        agent: str | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> SubtaskResult:
        """Start a task of its own and wait for its end; meanwhile this one is WAITING_FOR_SUBTASK.

        If the process dies, the next one goes on with the sub-task, and the sub-task's answer
        becomes the result of this tool call: what the tool would have done after it is not done,
        unless the tool is to be run again (``on_interrupted="rerun"``). Then this method finds the
        sub-task that it started the first time.

        Args:
            task_input: What the sub-task is asked to do.
            agent: Name of one of the agent's ``subagents``; by default the agent itself.
            context: The sub-task's context.
        """
        return await self._run_subtask(task_input, agent, context)


class Tool:
    """A tool that an agent's model may call; made by `tool`, or from a function by the agent.

    Args:
        function: An asynchronous function. The schema of its arguments follows from its type hints,
            in the terms of msgspec: ``Annotated[int, msgspec.Meta(ge=1)]`` works. Descriptions come
            from its docstring and the docstring's ``Args`` section.
        name: What the model calls it; the function's name by default.
        description: For the model; the docstring's first paragraph by default.
        timeout: Seconds after which a call is given up, with an error as its result.
        on_interrupted: What becomes of a call of this tool that had begun when its process died;
            the agent's policy by default. ``"rerun"`` is for tools that may run twice.

    Raises:
        InvalidDataError: The function cannot be a tool: it is not asynchronous, or a parameter has
            no schema.
    """

    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        on_interrupted: InterruptionPolicy | None = None,
    ) -> None:
        signed: Callable[..., Awaitable[Any]] = function
        if not inspect.iscoroutinefunction(function):
            signed = getattr(function, "__call__", function)  # noqa: B004 - an object that is called
        if not inspect.iscoroutinefunction(signed):
            raise InvalidDataError(f"a tool is an 'async def' function, not {shown(function)}")
        named = name or getattr(function, "__name__", None)
        if named is None:
            raise InvalidDataError(f"give the tool a name: {shown(function)} has none")
        if on_interrupted is not None and on_interrupted not in POLICIES:
            raise InvalidDataError(f"on_interrupted must be one of {POLICIES} or None")
        self.function: Callable[..., Awaitable[Any]] = function
        self.name: str = named
        self.timeout: float | None = timeout
        self.on_interrupted: InterruptionPolicy | None = on_interrupted
        text, described = _read_docstring(inspect.getdoc(signed) or "")
        self._arguments, self._context_name = _arguments_of(signed, self.name)
        self.spec: ToolSpec = ToolSpec(
            self.name,
            text if description is None else description,
            _schema_of(self._arguments, described, self.name),
        )

    async def __call__(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Run the tool; return a JSON value.

        Raises:
            InvalidDataError: The arguments do not fit, or the result is no JSON value.
            TimeoutError: It took too long.
            Exception: What the function raised.
        """
        try:
            converted = msgspec.convert(dict(arguments), self._arguments)
        except msgspec.ValidationError as error:
            raise InvalidDataError(f"the arguments do not fit: {error}") from error
        values = {name: getattr(converted, name) for name in self._arguments.__struct_fields__}
        if self._context_name is not None:
            values[self._context_name] = context
        result = await self.function(**values)
        return to_json(result)


def to_json(result: object) -> Any:
    """A tool's result as a JSON value: structs, dataclasses, dates and the like become what JSON
    has.

    Raises:
        InvalidDataError: It is none, and cannot become one.
    """
    try:
        plain = with_lists(msgspec.to_builtins(result, str_keys=True))
        return check_json(plain, "the tool's result")
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidDataError(f"the tool's result is no JSON value: {error}") from error


@overload
def tool(function: Callable[..., Awaitable[Any]], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    on_interrupted: InterruptionPolicy | None = None,
) -> Callable[[Callable[..., Awaitable[Any]]], Tool]: ...


def tool(
    function: Callable[..., Awaitable[Any]] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    on_interrupted: InterruptionPolicy | None = None,
) -> Tool | Callable[[Callable[..., Awaitable[Any]]], Tool]:
    """Make a `Tool` of a function; as a decorator with or without options. See `Tool`."""

    def make(function: Callable[..., Awaitable[Any]]) -> Tool:
        return Tool(
            function,
            name=name,
            description=description,
            timeout=timeout,
            on_interrupted=on_interrupted,
        )

    return make if function is None else make(function)


def _arguments_of(
    function: Callable[..., Any], name: str
) -> tuple[type[msgspec.Struct], str | None]:
    """The parameters as a struct, and the name of the one that gets the context."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidDataError(f"tool {name!r}: a type hint cannot be resolved: {error}") from error
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    context_name: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context_name = parameter.name
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidDataError(
                f"tool {name!r}: parameter {parameter.name!r} must be one that can be passed by "
                "its name"
            )
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            default: Any = parameter.default
            if isinstance(default, list | dict | set):
                default = msgspec.field(default_factory=_copier(default))
            fields.append((parameter.name, hint, default))
    try:
        made = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(f"tool {name!r} cannot be described: {error}") from error
    return made, context_name


def _copier(default: Any) -> Callable[[], Any]:
    copy: Callable[[], Any] = default.copy
    return copy


def _schema_of(
    arguments: type[msgspec.Struct], described: Mapping[str, str], name: str
) -> dict[str, Any]:
    """The JSON schema, as one object."""
    try:
        (reference,), components = msgspec.json.schema_components(
            [arguments], ref_template="#/$defs/{name}"
        )
    except TypeError as error:
        raise InvalidDataError(f"tool {name!r}: a parameter has no JSON schema: {error}") from error
    schema: dict[str, Any] = components.pop(reference["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    for parameter, text in described.items():
        field = schema["properties"].get(parameter)
        if field is not None and "description" not in field:
            schema["properties"][parameter] = {**field, "description": text}
    if components:
        schema["$defs"] = components
    return schema


_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Yields|Raises|Example|Examples|Note):\s*$"
)
_ENTRY = re.compile(r"^ {2,8}\*{0,2}(\w+)(?: *\([^)]*\))?: +(.*)$")


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a Google-style docstring says before its first section, and of each argument."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _SECTION.match(line)]
    first = starts[0] if starts else len(lines)
    described: dict[str, str] = {}
    for start in starts:
        if not lines[start].startswith(("Args", "Arguments", "Parameters")):
            continue
        current = ""
        for line in lines[start + 1 :]:
            if line and not line.startswith(" "):
                break
            entry = _ENTRY.match(line)
            if entry:
                current = entry[1]
                described[current] = entry[2].strip()
            elif current and line.strip():
                described[current] += " " + line.strip()
    return "\n".join(lines[:first]).strip(), described


__all__ = [
    "POLICIES",
    "InterruptionPolicy",
    "RunSubtask",
    "SubtaskResult",
    "Tool",
    "ToolContext",
    "to_json",
    "tool",
]
