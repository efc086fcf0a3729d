"""How a model is brought to go on with what it has said already."""

from outlast.model_api import ModelEvent, TextDelta

CONTINUE_INSTRUCTION = (
    "Your last message was interrupted. Write only what comes next, beginning at the exact "
    "character where it stops: repeat nothing of it, and do not mention the interruption."
)
"""Sent behind an unfinished assistant message where the API itself would begin a new one."""


class Seam:
    """Joins a continuation to a prefix whose white space at the end could not be sent.

    The model does not know that space, so it begins with it again; what it repeats is left out.

    Args:
        kept: The white space that was cut off the prefix, and that the turn has already.
    """

    def __init__(self, kept: str = "") -> None:
        self._kept = kept

    def join(self, event: ModelEvent) -> ModelEvent | None:
        """The event without what it repeats; ``None`` if nothing of it is left."""
        if not self._kept or not isinstance(event, TextDelta):
            return event
        text, kept = event.text, self._kept
        repeated = 0
        while repeated < min(len(text), len(kept)) and text[repeated] == kept[repeated]:
            repeated += 1
        self._kept = kept[repeated:] if repeated == len(text) else ""
        if not repeated:
            return event
        return TextDelta(text[repeated:]) if repeated < len(text) else None


__all__ = ["CONTINUE_INSTRUCTION", "Seam"]
