"""Reading what arrives: an SDK's objects and plain dicts alike."""

from collections.abc import Iterable
from typing import Any, cast


def field(value: object, name: str) -> Any:
    """A field of an SDK's object or of a dict; ``None`` if it is not there."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name)
    return getattr(value, name, None)


def plain(value: Any) -> Any:
    """An SDK's object as the JSON that it was made from; what is JSON already, as it is."""
    to_dict = getattr(value, "to_dict", None)
    return value if to_dict is None else to_dict(mode="json")


def join(pieces: Iterable[str]) -> str:
    """One text of pieces that may begin and end within a character (half a surrogate pair)."""
    return "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


__all__ = ["field", "join", "plain"]
