"""Each wire cuts a dialogue at the same places, however the bytes arrive."""

import struct
from collections.abc import Callable, Sequence

import pytest

from outlast_contract.faults.wires import WIRES, Wire
from outlast_contract.servers.mongodb import _bson


def resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def mongo(document: dict[str, object], *, flags: int = 0) -> bytes:
    body = struct.pack("<iB", flags, 0) + _bson(document)
    return struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body


def postgres(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", 4 + len(body)) + body


def mysql(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


OK = b"\x00\x00\x00\x02\x00\x00\x00"
MORE = b"\x00\x00\x00\x0a\x00\x00\x00"
END = b"\xfe\x00\x00\x02\x00"
ROWS = b"".join(
    mysql(number, body)
    for number, body in enumerate(
        [b"\x02", b"first column", b"second column", END, b"\x01a\x01b", b"\xfb\x01c", END], 1
    )
)
PREPARED = mysql(1, b"\x00\x01\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00") + b"".join(
    mysql(number, body) for number, body in enumerate([b"parameter", END, b"column", END], 2)
)

REQUESTS: dict[str, list[tuple[bytes, str]]] = {
    "redis": [
        (resp(b"HELLO", b"3"), "setup"),
        (resp(b"EVALSHA", b"abc", b"1", b"a\r\nb$5*3"), "call"),
        (b"GET key\r\n", "call"),
        (resp(b"SET", b"k", b""), "call"),
    ],
    "mongodb": [
        (mongo({"hello": 1}), "setup"),
        (mongo({"insert": "t", "$db": "d"}), "call"),
        (mongo({"update": "t"}, flags=2), "notice"),
        (struct.pack("<iiii", 20, 1, 0, 2004) + b"abcd", "setup"),
    ],
    "http": [
        (b"PUT /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nab\r\nc", "call"),
        (b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "call"),
        (
            (
                b"PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"3;x=y\r\nabc\r\n0\r\nx: y\r\n\r\n"
            ),
            "call",
        ),
        (b"HEAD /a HTTP/1.1\r\n\r\n", "call"),
    ],
    "postgresql": [
        (postgres(b"P", b"x\0select\0") + postgres(b"D", b"Sx\0") + postgres(b"S"), "call"),
        (postgres(b"P", b"y\0select\0") + postgres(b"D", b"Sy\0") + postgres(b"H"), "call"),
        (postgres(b"P", b"z\0bad\0") + postgres(b"H"), "call"),
        (postgres(b"Q", b"select 1\0"), "call"),
        (postgres(b"P", b"x\0select\0") + postgres(b"D", b"Sx\0") + postgres(b"H"), "call"),
        (postgres(b"B") + postgres(b"E") + postgres(b"S"), "call"),
        (postgres(b"P", b"x\0bad\0") + postgres(b"D", b"Sx\0") + postgres(b"H"), "call"),
        (postgres(b"S"), "call"),
        (postgres(b"X"), "notice"),
    ],
    "mysql": [
        (mysql(0, b"\x03select 1"), "call"),
        (mysql(0, b"\x16select ?"), "call"),
        (mysql(0, b"\x19\x01\x00\x00\x00"), "notice"),
        (mysql(0, b"\x0e"), "call"),
        (mysql(0, b"\x03call p()"), "call"),
        (mysql(0, b"\x03bad"), "call"),
        (mysql(0, b"\x01"), "notice"),
    ],
}
REPLIES: dict[str, list[bytes]] = {
    "redis": [
        b"%1\r\n+server\r\n*2\r\n$3\r\na\r\n\r\n:6\r\n",
        b"$-1\r\n",
        b"-ERR what\r\n",
        b"*-1\r\n",
        b"|1\r\n+ttl\r\n:3\r\n*1\r\n_\r\n",
    ],
    "mongodb": [mongo({"ok": 1}), mongo({"n": 1, "ok": 1}), mongo({"ok": 0})],
    "http": [
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 100\r\n\r\n",
    ],
    "postgresql": [
        postgres(b"1") + postgres(b"D", b"row") + postgres(b"Z", b"I"),
        postgres(b"1") + postgres(b"t", b"parameters") + postgres(b"T", b"row"),
        postgres(b"E", b"error"),
        postgres(b"E", b"error") + postgres(b"Z", b"E"),
        postgres(b"1") + postgres(b"t", b"parameters") + postgres(b"T", b"columns"),
        postgres(b"2") + postgres(b"T", b"row") + postgres(b"Z", b"I"),
        postgres(b"E", b"no"),
        postgres(b"Z", b"I"),
    ],
    "mysql": [
        ROWS,
        PREPARED,
        mysql(1, OK),
        2 * (ROWS[: -len(END)] + b"\xfe\x00\x00\x0a\x00") + mysql(9, MORE) + mysql(10, OK),
        mysql(1, b"\xff\x28\x04#42000no"),
    ],
}


def established(name: str) -> Wire:
    """A wire behind its handshake, which is passed on as it comes."""
    wire = WIRES[name]()
    if name == "postgresql":
        asked = struct.pack("!ii", 8, 80877103)
        start = struct.pack("!ii", 13, 196608) + b"user\0"
        password = postgres(b"p", b"secret\0")
        for data in (asked, start[:5], start[5:], password):
            assert [piece.kind for piece in wire.requests(data)] == ["setup"]
        ready = postgres(b"R", bytes(4)) + postgres(b"Z", b"I")
        for data in (b"N", ready[:7], ready[7:]):
            assert wire.replies(data) == [data]
    if name == "mysql":
        greeting, answer = mysql(0, b"\x0a8.0\0rest"), mysql(1, bytes(40))
        assert wire.replies(greeting) == [greeting]
        assert [piece.kind for piece in wire.requests(answer)] == ["setup"]
        done = mysql(2, b"\x01\x04") + mysql(3, OK)
        assert wire.replies(done) == [done]
    assert wire.is_established
    return wire


def chunked(data: bytes, size: int) -> Sequence[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_are_whole_however_they_arrive(name: str) -> None:
    """In pieces of every size the same requests come out, each with its kind."""
    data = b"".join(request for request, _ in REQUESTS[name])
    for size in range(1, len(data) + 1):
        wire = established(name)
        found = [piece for chunk in chunked(data, size) for piece in wire.requests(chunk)]
        assert [(piece.data, piece.kind) for piece in found] == REQUESTS[name]


@pytest.mark.parametrize("name", REPLIES)
def test_replies_are_whole_however_they_arrive(name: str) -> None:
    """In pieces of every size the same replies come out, and nothing is left."""
    data = b"".join(REPLIES[name])
    for size in range(1, len(data) + 1):
        wire = established(name)
        for request, _ in REQUESTS[name]:
            wire.requests(request)
        found = [reply for chunk in chunked(data, size) for reply in wire.replies(chunk)]
        assert found == REPLIES[name]
        assert wire.rest() == b""


@pytest.mark.parametrize("name", REPLIES)
def test_the_beginning_of_a_reply_is_not_lost(name: str) -> None:
    """What a server sent before it closed the connection can still be passed on."""
    wire = established(name)
    wire.requests(REQUESTS[name][0][0])
    reply = REPLIES[name][0]
    assert wire.replies(reply[:-1]) == []
    assert wire.rest() == reply[:-1]


def test_mysql_without_packets_that_end_rows() -> None:
    """CLIENT_DEPRECATE_EOF: no packet behind the columns, and the last one is an OK."""
    wire = WIRES["mysql"]()
    wire.replies(mysql(0, b"\x0a8.0\0rest"))
    wire.requests(mysql(1, struct.pack("<I", 1 << 24) + bytes(40)))
    wire.replies(mysql(2, OK))
    wire.requests(mysql(0, b"\x03select"))
    last = b"\xfe\x00\x00\x02\x00\x00\x00"
    reply = b"".join(mysql(n, body) for n, body in enumerate([b"\x01", b"column", b"\x01a", last]))
    assert wire.replies(reply) == [reply]


def test_a_packet_of_16_mb_goes_on_in_the_next() -> None:
    """MySQL cuts longer messages at 2**24 - 1 bytes."""
    wire = established("mysql")
    command = mysql(0, b"\x03" + bytes(0xFFFFFE)) + mysql(1, b"rest")
    assert wire.requests(command[:-1]) == []
    assert [piece.data for piece in wire.requests(command[-1:])] == [command]


def test_what_a_server_says_unasked_is_told_apart() -> None:
    """Redis pushes, and what MongoDB goes on telling a monitor."""
    assert WIRES["redis"]().is_unasked(b">2\r\n+invalidate\r\n*0\r\n")
    wire = WIRES["mongodb"]()
    told = [wire.is_unasked(mongo({"ok": 1}, flags=flags)) for flags in (2, 2, 0, 0)]
    assert told == [False, True, True, False]


def test_a_client_that_waits_for_100_continue_is_told_to_go_on() -> None:
    """Once; the server's own interim answers are dropped."""
    wire = WIRES["http"]()
    head = b"PUT /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert wire.requests(head) == []
    assert wire.interim(head).startswith(b"HTTP/1.1 100")
    assert wire.interim(head) == b""
    assert [piece.data for piece in wire.requests(b"ab")] == [head + b"ab"]
    answer = b"HTTP/1.1 204 No Content\r\n\r\n"
    assert wire.replies(b"HTTP/1.1 100 Continue\r\n\r\n" + answer) == [answer]


def test_turns_are_told_apart_where_nothing_is_known_of_the_protocol() -> None:
    """What a client sends before it is answered is one request."""
    wire = WIRES["turns"]()
    kinds: Callable[[bytes], list[str]] = lambda data: [p.kind for p in wire.requests(data)]  # noqa: E731
    assert kinds(b"a") == ["call"]
    assert kinds(b"b") == ["rest"]
    assert wire.replies(b"c") == [b"c"]
    assert kinds(b"d") == ["call"]
