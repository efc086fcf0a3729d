"""Tools: what a model is told of a function, and how a call of the model becomes a call of it."""

import dataclasses
import datetime as dt
import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from outlast import InvalidDataError
from outlast.runtime import Tool, ToolContext, tool


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


@dataclasses.dataclass
class Place:
    name: str
    height: float = 0.0


@tool
async def weather(  # noqa: D417 - not every argument needs a description
    city: str,
    days: Annotated[int, msgspec.Meta(ge=1, le=7)] = 1,
    unit: Unit = Unit.C,
    *,
    places: list[Place] | None = None,
    kind: Literal["short", "long"] = "short",
    context: ToolContext,
) -> dict[str, Any]:
    """The weather in a city.

    More about it.

    Args:
        city: Its name,
            in English.
        days: How many.
        context: Not for the model.

    Returns:
        What was passed.
    """
    return {
        "city": city,
        "days": days,
        "unit": unit,
        "places": places,
        "kind": kind,
        "key": context.idempotency_key,
    }


async def no_subtask(*_: Any) -> Any:
    raise AssertionError


CONTEXT = ToolContext(
    task_id="t",
    message_id="m",
    call_id="c",
    idempotency_key="k",
    is_rerun=False,
    context={},
    claim=None,
    persistence=None,  # type: ignore[arg-type]
    run_subtask=no_subtask,
)


def test_the_schema_follows_from_hints_and_docstring() -> None:
    assert weather.spec.name == "weather"
    assert weather.spec.description == "The weather in a city.\n\nMore about it."
    schema = weather.spec.parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["city"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["city"] == {
        "type": "string",
        "description": "Its name, in English.",
    }
    assert schema["properties"]["days"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 7,
        "default": 1,
        "description": "How many.",
    }
    assert "context" not in schema["properties"]
    assert set(schema["$defs"]) == {"Unit", "Place"}
    msgspec.json.encode(schema)


async def test_a_call_converts_the_arguments() -> None:
    """Into what the hints say; the result becomes a JSON value."""
    result = await weather(
        {"city": "Rome", "unit": "fahrenheit", "places": [{"name": "x", "height": 1}]}, CONTEXT
    )
    assert result == {
        "city": "Rome",
        "days": 1,
        "unit": "fahrenheit",
        "places": [{"name": "x", "height": 1.0}],
        "kind": "short",
        "key": "k",
    }


@pytest.mark.parametrize(
    "arguments",
    [{}, {"city": 1}, {"city": "x", "days": 0}, {"city": "x", "nope": 1}, {"city": None}],
    ids=str,
)
async def test_arguments_that_do_not_fit_are_refused(arguments: Any) -> None:
    """With a text from which the model can learn."""
    with pytest.raises(InvalidDataError, match="the arguments do not fit"):
        await weather(arguments, CONTEXT)


@pytest.mark.parametrize(
    ("result", "stored"),
    [
        (None, None),
        (Place("x"), {"name": "x", "height": 0.0}),
        (dt.date(2026, 1, 2), "2026-01-02"),
        ((1, 2), [1, 2]),
        ({1: 2}, {"1": 2}),
    ],
    ids=str,
)
async def test_results_become_json_values(result: Any, stored: Any) -> None:
    @tool
    async def give() -> Any:
        return result

    assert await give({}, CONTEXT) == stored


@pytest.mark.parametrize(
    "result",
    [float("nan"), object(), "\ud800", 10**1001],
    ids=["nan", "object", "surrogate", "huge"],
)
async def test_a_result_that_cannot_be_stored_is_refused(result: Any) -> None:
    @tool
    async def give() -> Any:
        return result

    with pytest.raises(InvalidDataError, match="result"):
        await give({}, CONTEXT)


def test_what_cannot_be_a_tool_is_refused() -> None:
    """At once, with the reason."""

    def ordinary() -> None: ...

    async def positional(x: int, /) -> None: ...

    async def many(*x: int) -> None: ...

    async def unknown(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    async def strange(x: weather.__class__) -> None: ...  # type: ignore[name-defined]

    for function in (ordinary, positional, many, unknown, strange):
        with pytest.raises(InvalidDataError):
            Tool(function)  # type: ignore[arg-type]


class Counter:
    """An object as a tool."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, by: int) -> int:
        """Count on."""
        self.count += by
        return self.count

    async def again(self, by: int) -> int:
        """Count on, too."""
        return await self(by)


async def test_methods_and_objects_can_be_tools() -> None:
    """An object needs a name."""
    counter = Counter()
    whole, method = Tool(counter, name="count"), Tool(counter.again)
    assert (whole.spec.description, method.name) == ("Count on.", "again")
    assert await whole({"by": 1}, CONTEXT) == 1
    assert await method({"by": 2}, CONTEXT) == 3
    with pytest.raises(InvalidDataError, match="name"):
        Tool(counter)


def test_options_override_what_the_function_says() -> None:
    @tool(name="look", description="Look.", timeout=2.5, on_interrupted="rerun")
    async def anything(x: Any, default: list[int] = [1]) -> None:  # noqa: B006
        """Not this."""

    assert (anything.spec.name, anything.spec.description) == ("look", "Look.")
    assert (anything.timeout, anything.on_interrupted) == (2.5, "rerun")
    assert anything.spec.parameters["properties"]["default"]["type"] == "array"
