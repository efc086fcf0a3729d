"""Reading what arrives: an SDK's objects and plain dicts alike."""

from typing import Any, cast


def field(value: object, name: str) -> Any:
    """A field of an SDK's object or of a dict; ``None`` if it is not there."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name)
    return getattr(value, name, None)


__all__ = ["field"]
