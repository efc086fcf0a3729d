"""Values and ids that stores of this kind have stumbled over, with what to call each."""

import math
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final


def nested(depth: int, leaf: Any, *, in_lists: bool = False) -> Any:
    """``leaf`` inside of ``depth`` containers."""
    value = leaf
    for _ in range(depth):
        value = [value] if in_lists else {"d": value}
    return value


NUMBERS: Final[dict[str, Any]] = {
    "1": 1,
    "1.0": 1.0,
    "0": 0,
    "0.0": 0.0,
    "-0.0": -0.0,
    "-1": -1,
    "2**53": 2**53,
    "2**53+1": 2**53 + 1,
    "2**63-1": 2**63 - 1,
    "2**63": 2**63,
    "-2**63": -(2**63),
    "-2**63-1": -(2**63) - 1,
    "2**64": 2**64,
    "2**64-1": 2**64 - 1,
    "2**80": 2**80,
    "-2**80": -(2**80),
    "1e16 as int": 10**16,
    "1e16 as float": 1e16,
    "999 digits": 10**998 + 7,
    "1,000 digits": 10**1000 - 1,
    "-1,000 digits": -(10**1000) + 1,
    "0.1": 0.1,
    "0.1+0.2": 0.1 + 0.2,
    "1/3": 1 / 3,
    "the largest float": 1.7976931348623157e308,
    "the smallest float": 5e-324,
    "-5e-324": -5e-324,
    "1e23": 1e23,
    "9007199254740993.0": 9007199254740993.0,
}

CONTAINERS: Final[dict[str, Any]] = {
    "True": True,
    "False": False,
    "empty list": [],
    "empty dict": {},
    "list of empties": [[], {}, "", [[]], [{}]],
    "empty key": {"": {"": ""}},
    "mixed list": [1, 1.0, True, "1", None, [1], {"1": 1}],
    "order of keys": {"b": 1, "a": 2, "B": 3, "10": 4, "9": 5, "": 6},
    "nested dicts": nested(200, "leaf"),
    "nested lists": nested(200, 1.0, in_lists=True),
    "wide": {str(number): number for number in range(2000)},
}

KEYS: Final[dict[str, Any]] = {
    "dotted": {"a.b": 1, "a": {"b": 2}, ".": 3, "..": 4},
    "dollars": {"$set": {"x": 1}, "$": 2, "$100": 3, "a$b": "$field"},
    "prototype": {"__proto__": 1, "constructor": 2, "toString": 3},
    "of the models": {"id": 1, "_id": 2, "type": 3, "format": 4, "kind": 5, "updated_at": 6},
    "class names": {"__class__": "x", "py/object": "os.system", "$type": "y", "@class": "z"},
}

TEXTS: Final[dict[str, str]] = {
    "empty": "",
    "NUL": "\x00",
    "NUL inside": "a\x00b\x00",
    "control characters": "".join(chr(code) for code in range(32)) + "\x7f\x80\x9f",
    "line separators": "a\r\nb\nc\rd\u2028e\u2029f\x85",
    "escapes": "\\ \\u0000 \\n \" ' ` %s %% {} {{}} ${x} $x $$ &amp; <b> \\",
    "dollar first": "$secret",
    "number": "100",
    "null": "null",
    "emoji": "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 😀",
    "planes": "\U00010000\U0001f600\U0010ffff\uffff\ufffe\ufdd0",
    "combining": "e\u0301 \u00e9 \u1e9b\u0323 \u2126 \u03a9",
    "right to left": "\u202eabc\u202c \u05d0\u05d1 \u0627\u0628",
    "byte order mark": "\ufeffx\ufeff",
    "private use": "\ue000\uf8ff",
    "replacement character": "\ufffd",
    "spaces": "  leading, trailing \t\u00a0\u3000 ",
    "looks like JSON": '{"format":99,"kind":"task_state"}\n{}',
    "looks like SQL": "'; DROP TABLE tasks; --",
    "long line": "x" * 70_000,
    "long text of four bytes": "😀" * 20_000,
}

NONES: Final[dict[str, Any]] = {
    "None": None,
    "in a list": [None, [None], {"a": None}],
    "in a dict": {"a": None, "b": {"c": None}},
}


class _Text(str):
    __slots__ = ()


REFUSED: Final[dict[str, Any]] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "-infinity": -math.inf,
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "tuple": (1, 2),
    "set": {1},
    "frozenset": frozenset({1}),
    "int key": {1: "a"},
    "None key": {None: "a"},
    "bytes key": {b"a": 1},
    "bool key": {True: 1},
    "tuple key": {(1,): 1},
    "high surrogate": "\ud800",
    "low surrogate": "a\udfff",
    "surrogates the wrong way round": "\udc00\ud800",
    "surrogate in a key": {"\ud800": 1},
    "1,001 digits": 10**1000,
    "-1,001 digits": -(10**1000),
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "Decimal": Decimal("1.5"),
    "object": object(),
    "complex": 1j,
    "ordered dict": OrderedDict(a=1),
    "str subclass": _Text("a"),
    "function": len,
    "NaN in a list": [1, [2, math.nan]],
    "NaN in a dict": {"a": {"b": math.nan}},
}
"""What no field of JSON values takes (V6)."""

TWINS: Final[dict[str, tuple[str, ...]]] = {
    "case": ("run", "Run", "RUN", "rUN", "İ", "i", "I", "ı", "ß", "SS", "ss", "ẞ"),
    "accents": ("e", "é", "è", "ê", "ö", "o", "œ", "oe", "ø", "ñ", "n"),
    "trailing spaces": ("t", "t ", "t  ", " t", "t\t", "t\n", "t\u00a0", "t\x00", "\x00t", "t."),
    "normal forms": (
        "é!",
        "e\u0301!",
        "\u1e9b\u0323",
        "\u1e69",
        "\u2126",
        "\u03a9",
        "ﬁ",
        "fi",
        "①",
        "1",
    ),
    "emoji": ("😀", "😁", "👍", "👍🏽", "👩\u200d👧", "👩👧", "\ufe0f", "☺", "☺\ufe0f"),
    "planes": ("\uffff", "\U00010000", "\U0010ffff", "\ue000", "\ufffd", "\ufeff", "\ufeffa", "a"),
}
"""Ids that a collation, a file system or a normalization takes for each other (I1)."""

SEPARATED: Final[dict[str, tuple[str, ...]]] = {
    "prefixes": ("t1", "t10", "t100", "t", "t1t1", "1"),
    "slashes": ("a", "a/b", "a/b/c", "a/", "a/state", "a/api/1", "b"),
    "colons": ("a:b", "a::b", "a:b:c", ":a", "b:a", "a:", ":"),
    "other separators": (
        "a.b",
        "a-b",
        "a_b",
        "a|b",
        "a,b",
        "a;b",
        "a#b",
        "a@b",
        "a&b",
        "a=b",
        "a b",
    ),
    "zeros": ("0", "00", "-0", "0.0", "1", "01", "1.0", "1e0"),
    "escapes": ("a%2Fb", "a%252Fb", "a/b%", "%", "%%", "%00", "+", "%2B", "a+b", "_", "__", "a__b"),
}
"""Ids that meet when keys are glued together without escaping (I2)."""

PATHS: Final[dict[str, tuple[str, ...]]] = {
    "dots": (".", "..", "...", "./x", "x", "../x", "x/..", "x/.", "a/../x", "~", "~root", "$HOME"),
    "slashes": (
        "/",
        "//",
        "/a",
        "a//b",
        "a/b",
        "a/",
        "\\",
        "a\\b",
        "\\\\a",
        "C:\\x",
        "C:",
        "file:///x",
    ),
    "devices": (
        "CON",
        "con",
        "NUL",
        "nul.txt",
        "COM1",
        "aux",
        "LPT1.",
        "desktop.ini",
        ".git",
        "-rf",
    ),
    "patterns": (
        "*",
        "?",
        "[a]",
        "[!a]",
        "{",
        "}",
        "{}",
        "}{",
        "a{b}c",
        "{a,b}",
        "b",
        "{b}",
        "x{b}y",
        "%",
        "_",
        "a%",
        "^",
        "$",
    ),
    "quotes": (
        "'",
        '"',
        "`",
        "''",
        "a'b",
        "';--",
        "NULL",
        "null",
        "None",
        "true",
        "\x00",
        "\x1f",
        "\x7f",
    ),
}
"""Ids that a path, a pattern or a quotation takes apart (I3)."""

LONG: Final[dict[str, tuple[str, ...]]] = {
    "long": (
        "x" * 512,
        "x" * 511,
        "/" * 512,
        "." * 512,
        "é" * 256,
        "😀" * 128,
        "\x00" * 512,
        "a" * 255,
    ),
}
"""Ids as long as ids may be (I4)."""

NOT_IDS: Final[dict[str, Any]] = {
    "empty": "",
    "513 bytes": "x" * 513,
    "513 bytes of two-byte characters": "é" * 256 + "x",
    "516 bytes of four-byte characters": "😀" * 129,
    "a surrogate": "a\ud800",
    "None": None,
    "an int": 7,
    "bytes": b"id",
    "a list": ["id"],
}
"""What is no id (I4)."""

__all__ = [
    "CONTAINERS",
    "KEYS",
    "LONG",
    "NONES",
    "NOT_IDS",
    "NUMBERS",
    "PATHS",
    "REFUSED",
    "SEPARATED",
    "TEXTS",
    "TWINS",
    "nested",
]
