"""Text that arrives in pieces: no piece that is passed on holds half a surrogate pair."""

import re

_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def has_surrogates(text: str) -> bool:
    """Whether ``text`` holds a surrogate code point, which UTF-8 cannot carry."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def join_halves(text: str) -> tuple[str, str]:
    """Make ``text`` storable, and keep back what the next piece may complete.

    Halves that stand side by side become the character that they encode; a half without its mate
    becomes U+FFFD.

    Returns:
        The clean text, and the first half of a pair if ``text`` ends with one, else ``""``.
    """
    held = ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        text, held = text[:-1], text[-1]
    return _HALVES.sub(_join, text), held


def _join(found: re.Match[str]) -> str:
    halves = found[0]
    if len(halves) == 1:
        return REPLACEMENT
    return chr(0x10000 + ((ord(halves[0]) - 0xD800) << 10) + (ord(halves[1]) - 0xDC00))


__all__ = ["REPLACEMENT", "has_surrogates", "join_halves"]
