"""Answers of an S3 store that its clients seldom get, and must understand when they do."""

from typing import Final

from outlast_contract.faults.proxy import Exchange

LOST_RACES: Final = ((409, "ConditionalRequestConflict"), (412, "PreconditionFailed"))
"""A condition did not hold, or another request was under way."""

FAILURES: Final = ((500, "InternalError"), (503, "SlowDown"), (503, "ServiceUnavailable"))
"""The store could not do it, or did it and could not say so."""

GONE: Final = (404, "NoSuchKey")


class Answer:
    """The client gets an error of S3, whatever the store would say."""

    def __init__(self, status: int, code: str, *, delivered: bool) -> None:
        """Answer instead of the store; with ``delivered`` behind its back, after it has acted."""
        self._status, self._code, self._delivered = status, code, delivered

    async def __call__(self, exchange: Exchange) -> None:
        if self._delivered:
            await exchange.deliver()
            await exchange.receive()
        has_body = not exchange.request.startswith(b"HEAD ")
        await exchange.answer(_message(self._status, self._code, has_body=has_body))


async def ignore_conditions(exchange: Exchange) -> None:
    """The store seems to write whatever the conditions of the request say."""
    await exchange.deliver()
    reply = await exchange.receive()
    if is_write(exchange.request) and reply[9:12] in (b"404", b"409", b"412"):
        etag = b'"%032x"' % (hash(exchange.request) % 2**128)
        reply = b"HTTP/1.1 200 OK\r\nETag: %s\r\nContent-Length: 0\r\n\r\n" % etag
    await exchange.answer(reply)


def _message(status: int, code: str, *, has_body: bool) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>the suite wants it so</Message></Error>"
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body if has_body else ''}".encode()


def is_write(request: bytes) -> bool:
    """Whether it is to change something."""
    return request.startswith((b"PUT ", b"POST ", b"DELETE "))


def is_put(request: bytes) -> bool:
    """Whether it is to store an object."""
    return request.startswith(b"PUT ")


__all__ = ["FAILURES", "GONE", "LOST_RACES", "Answer", "ignore_conditions", "is_put", "is_write"]
