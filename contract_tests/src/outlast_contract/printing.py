"""Text that terminals, XML and HTML can carry, whatever was found."""


def printable(text: str) -> str:
    """``text`` with what terminals and XML cannot carry written as escapes."""
    return "".join(one if one in "\n\t" or one.isprintable() else ascii(one)[1:-1] for one in text)


__all__ = ["printable"]
