"""StreamAccumulator: what it passes on, what it holds back, and what a checkpoint shows of it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_kit import content_of, full_text, raw_calls, rendered, says

from outlast.runtime import (
    ModelEvent,
    StreamAccumulator,
    StreamEnd,
    StreamEvent,
    TextDelta,
    ToolCallCancelled,
    ToolCallDelta,
    ToolCallReady,
    plan_recovery,
)

NAMES = {"run_id": "r", "thread_id": "t", "message_id": "m", "model": "x"}
SURROGATES = st.characters(min_codepoint=0xD7FE, max_codepoint=0xE001, categories=None)
TEXTS = st.text(st.one_of(SURROGATES, st.characters(categories=None)), max_size=6)


def feed_all(accumulator: StreamAccumulator, events: list[ModelEvent]) -> list[StreamEvent]:
    return [shown for event in events for shown in accumulator.feed(event)]


def test_text_passes_unchanged_as_the_same_objects() -> None:
    """The usual delta costs no copy."""
    accumulator = StreamAccumulator()
    deltas = [TextDelta("Grüß "), TextDelta("Gott"), TextDelta("\U0001f30d")]
    shown = [accumulator.feed(delta)[0] for delta in deltas]
    assert all(one is other for one, other in zip(shown, deltas, strict=True))
    assert accumulator.text == "Grüß Gott\U0001f30d"


def test_empty_deltas_show_nothing() -> None:
    """An empty piece of text is no event."""
    accumulator = StreamAccumulator()
    assert list(accumulator.feed(TextDelta(""))) == []
    assert accumulator.is_empty


def test_a_pair_cut_between_two_deltas_is_joined() -> None:
    """The first half waits for the second, and neither a checkpoint nor an event shows it."""
    accumulator = StreamAccumulator()
    assert [event.text for event in accumulator.feed(TextDelta("a\ud83c"))] == ["a"]
    assert accumulator.checkpoint(**NAMES).text == "a"
    assert [event.text for event in accumulator.feed(TextDelta("\udf0db"))] == ["\U0001f30db"]
    assert accumulator.text == "a\U0001f30db"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["\ud83c", "x"], "\ufffdx"),
        (["\udf0d"], "\ufffd"),
        (["\ud83c", "\ud83c", "\udf0d"], "\ufffd\U0001f30d"),
        (["\udf0d\ud83c"], "\ufffd\ufffd"),
        (["a\ud83c"], "a\ufffd"),
    ],
    ids=["high-then-text", "low", "high-high-low", "low-high", "high-at-the-end"],
)
def test_a_single_half_becomes_the_replacement_character(pieces: list[str], text: str) -> None:
    """What no store can keep is replaced as soon as it is certain to stay alone."""
    accumulator = StreamAccumulator()
    shown = feed_all(accumulator, [*map(TextDelta, pieces), StreamEnd()])
    assert accumulator.text == text == full_text(shown)


@given(st.lists(TEXTS, max_size=8))
def test_any_cutting_of_any_text_gives_the_same_text(pieces: list[str]) -> None:
    """Whatever the pieces are, every checkpoint can be encoded, and the whole is right."""
    accumulator = StreamAccumulator()
    shown: list[StreamEvent] = []
    for piece in pieces:
        shown += accumulator.feed(TextDelta(piece))
        accumulator.checkpoint(**NAMES).text.encode()
    shown += accumulator.feed(StreamEnd())
    assert accumulator.text == full_text(map(TextDelta, pieces))
    assert full_text(shown) == accumulator.text
    assert all(event.text.encode() for event in shown if isinstance(event, TextDelta))


@given(st.lists(TEXTS, max_size=8))
def test_arguments_are_cleaned_as_text_is(pieces: list[str]) -> None:
    """The raw arguments of a checkpoint can be encoded at every moment."""
    accumulator = StreamAccumulator()
    accumulator.feed(ToolCallDelta(0, "c", "f"))
    for piece in pieces:
        accumulator.feed(ToolCallDelta(0, "c", "f", piece))
        accumulator.tool_calls[0].arguments.encode()
    accumulator.feed(StreamEnd())
    assert accumulator.tool_calls[0].arguments == full_text(map(TextDelta, pieces))


def test_a_call_is_ready_when_the_next_one_begins() -> None:
    """Complete arguments are announced once, at the latest at the end."""
    accumulator = StreamAccumulator()
    shown = feed_all(accumulator, says("", ("c1", "f", '{"a": 1}'), ("c2", "g", "{}"), piece=99))
    kinds = [(type(event).__name__, event.id) for event in shown if hasattr(event, "id")]
    assert kinds == [
        ("ToolCallDelta", "c1"),
        ("ToolCallDelta", "c1"),
        ("ToolCallReady", "c1"),
        ("ToolCallDelta", "c2"),
        ("ToolCallDelta", "c2"),
        ("ToolCallReady", "c2"),
    ]
    assert accumulator.finish_reason == "tool_calls"


def test_deltas_of_several_calls_may_alternate() -> None:
    """The index decides to which call a delta belongs; id and name come once."""
    accumulator = StreamAccumulator()
    shown = feed_all(
        accumulator,
        [
            ToolCallDelta(0, "c1", "f", '{"a"'),
            ToolCallDelta(1, "c2", "g", '{"b"'),
            ToolCallDelta(0, "", "", ":1}"),
            ToolCallDelta(1, "", "", ":2}"),
            StreamEnd(),
        ],
    )
    ready = [event for event in shown if isinstance(event, ToolCallReady)]
    assert [(event.id, event.arguments) for event in ready] == [("c1", {"a": 1}), ("c2", {"b": 2})]
    deltas = [event for event in shown if isinstance(event, ToolCallDelta)]
    assert [(event.id, event.name) for event in deltas] == [("c1", "f"), ("c2", "g")] * 2


@pytest.mark.parametrize(
    "arguments", ["", "12", "[1]", '{"a": ', '{"a": 1} x', '{"a": NaN}', "null"]
)
def test_arguments_that_are_no_object_cancel_the_call(arguments: str) -> None:
    """At the end, what is not complete is reported and left out."""
    accumulator = StreamAccumulator()
    shown = feed_all(accumulator, says("Hm.", ("c1", "f", arguments), piece=99))
    assert shown[-1] == ToolCallCancelled("c1", "f", arguments)
    assert accumulator.content() == [{"type": "text", "text": "Hm."}]
    assert accumulator.has_cancelled


def test_a_call_that_grows_after_it_was_ready_is_not_complete() -> None:
    """Text behind a complete object makes it malformed, whatever was announced."""
    accumulator = StreamAccumulator()
    events: list[ModelEvent] = [
        ToolCallDelta(0, "c1", "f", "{}"),
        ToolCallDelta(1, "c2", "g", "{}"),
        ToolCallDelta(0, "c1", "f", "x"),
        StreamEnd(),
    ]
    shown = feed_all(accumulator, events)
    assert rendered(shown) == content_of(events) == accumulator.content()


def test_white_space_behind_complete_arguments_changes_nothing() -> None:
    """JSON allows it; the call is announced once."""
    accumulator = StreamAccumulator()
    events: list[ModelEvent] = [
        ToolCallDelta(0, "c1", "f", "{}"),
        ToolCallDelta(1, "c2", "g", "{}"),
        ToolCallDelta(0, "c1", "f", " \n"),
        StreamEnd(),
    ]
    shown = feed_all(accumulator, events)
    assert [event.id for event in shown if isinstance(event, ToolCallReady)] == ["c1", "c2"]


def test_a_call_without_an_id_gets_one() -> None:
    """Results have to name their call; the index is a name, too."""
    accumulator = StreamAccumulator()
    feed_all(accumulator, [ToolCallDelta(3, "", "f", "{}"), StreamEnd()])
    assert accumulator.tool_calls[0].id == "call_3"


def test_settling_after_a_cut_reports_each_call_once() -> None:
    """What is complete is announced, the rest cancelled, and a second call adds nothing."""
    accumulator = StreamAccumulator()
    feed_all(accumulator, says("", ("c1", "f", "{}"), ("c2", "g", '{"a"'), piece=99)[:-1])
    assert accumulator.settle() == [ToolCallCancelled("c2", "g", '{"a"')]
    assert accumulator.settle() == []


def test_rewinding_keeps_the_given_text_alone() -> None:
    """Calls and held halves of the attempt before are gone."""
    accumulator = StreamAccumulator()
    feed_all(accumulator, [TextDelta("ab\ud83c"), ToolCallDelta(0, "c", "f", "{")])
    accumulator.rewind("ab")
    accumulator.feed(TextDelta("\U0001f30d"))
    assert (accumulator.text, accumulator.tool_calls) == ("ab\U0001f30d", [])


def test_a_checkpoint_goes_on_where_it_was_taken() -> None:
    """An accumulator made from a checkpoint equals the one that gave it."""
    events = says("Let me see. ", ("c1", "f", '{"a": [1, 2]}'))
    for cut in range(len(events)):
        accumulator = StreamAccumulator()
        feed_all(accumulator, events[:cut])
        checkpoint = accumulator.checkpoint(**NAMES, retry_count=2, task_epoch=7)
        again = StreamAccumulator(checkpoint.text, checkpoint.tool_calls)
        assert again.checkpoint(**NAMES, retry_count=2, task_epoch=7) == checkpoint
        assert [(c.id, c.name, c.arguments) for c in checkpoint.tool_calls] == raw_calls(
            events[:cut]
        )
        assert plan_recovery(checkpoint).content() == again.content()


def test_what_is_no_event_of_a_model_is_refused() -> None:
    """A model that yields raw text is told what to yield."""
    with pytest.raises(TypeError, match="not str"):
        StreamAccumulator().feed("text")  # type: ignore[arg-type]


def test_the_size_counts_bytes_and_only_grows() -> None:
    """The checkpoint policy counts what was taken in, whatever is dropped later."""
    accumulator = StreamAccumulator()
    accumulator.feed(TextDelta("aä\U0001f30d"))
    assert accumulator.size == 7
    accumulator.rewind("")
    accumulator.feed(ToolCallDelta(0, "id", "f", "{}"))
    assert accumulator.size == 7 + 2 + 1 + 2


def test_feeding_takes_constant_time() -> None:
    """300,000 deltas of a growing text take seconds at most; building strings would take
    minutes.
    """
    accumulator = StreamAccumulator()
    delta, call = TextDelta("word "), ToolCallDelta(0, "c", "f", "1234 ")
    begin = time.monotonic()
    for _ in range(150_000):
        accumulator.feed(delta)
        accumulator.feed(call)
    assert time.monotonic() - begin < 10
    assert len(accumulator.text) == len(accumulator.tool_calls[0].arguments) == 750_000
