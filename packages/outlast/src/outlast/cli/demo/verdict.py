"""Whether a committed conversation is exactly the script's."""

from collections.abc import Sequence

import msgspec

from outlast.models import ApiMessage


def compare(found: Sequence[ApiMessage], wanted: Sequence[ApiMessage]) -> list[str]:
    """All differences, in words; none if the conversations are equal to the byte."""
    problems: list[str] = []
    if [message.id for message in found] != [message.id for message in wanted]:
        problems.append(f"the messages are {_ids(found)}; they must be {_ids(wanted)}")
    by_id = {message.id: message for message in found}
    for message in wanted:
        other = by_id.get(message.id)
        if other is not None and _bytes(other) != _bytes(message):
            problems.append(f"message {message.id} differs: {_difference(other, message)}")
    return problems


def _ids(messages: Sequence[ApiMessage]) -> str:
    return ", ".join(message.id for message in messages) or "none"


def _bytes(message: ApiMessage) -> bytes:
    # Encoded, so that 1, 1.0 and True differ.
    return msgspec.json.encode((message.role, message.content, message.metadata), order="sorted")


def _difference(found: ApiMessage, wanted: ApiMessage) -> str:
    """The first place where two messages differ."""
    one, two = _bytes(found).decode(), _bytes(wanted).decode()
    place = next(
        (at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )
    start = max(place - 20, 0)
    return f"…{one[start : place + 20]!r}… instead of …{two[start : place + 20]!r}…"


__all__ = ["compare"]
