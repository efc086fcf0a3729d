r"""Records to bytes and back, in a versioned envelope.

The envelope is one line of JSON, then the payload: ``{"format":1,"kind":"api_message"}\n{...}``.
Stores see bytes only; a person who looks at them sees what they are. A reader knows every format
up to its own; golden files in the tests freeze each of them.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import msgspec

from outlast.errors import CorruptDataError, InvalidDataError, UnsupportedVersionError
from outlast.models import ApiMessage, Record, StreamCheckpoint, TaskInput, TaskState, UserMessage

FORMAT = 1
"""The format that this version writes."""

KINDS: dict[type[Record], str] = {
    TaskState: "task_state",
    TaskInput: "task_input",
    ApiMessage: "api_message",
    UserMessage: "user_message",
    StreamCheckpoint: "stream_checkpoint",
}
_MAX_HEADER = 1024

RecordT = TypeVar("RecordT", bound=Record)
_ResultT = TypeVar("_ResultT")


class Codec:
    """Turns validated records into the bytes that a store keeps, and back."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._decoders = {kind: msgspec.json.Decoder(kind) for kind in KINDS}
        self._headers = {
            kind: b'{"format":%d,"kind":"%s"}\n' % (FORMAT, name.encode())
            for kind, name in KINDS.items()
        }

    def encode(self, record: Record) -> tuple[bytes, int]:
        """Return the stored bytes and the payload's size in bytes (which V5 limits).

        Args:
            record: Checked by `outlast.values.check_record`.

        Raises:
            InvalidDataError: It cannot be encoded all the same.
        """
        try:
            payload = self._encoder.encode(record)
        except RecursionError:
            payload = _on_a_fresh_stack(self._encoder.encode, record)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidDataError(f"{type(record).__name__} cannot be encoded: {error}") from error
        return self._headers[type(record)] + payload, len(payload)

    def decode(self, data: bytes, kind: type[RecordT]) -> RecordT:
        """Return the record in ``data``.

        Raises:
            UnsupportedVersionError: Its format is newer than `FORMAT`.
            CorruptDataError: It cannot be decoded, or is a record of another kind (V8).
        """
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - a driver
            # hands on what it finds, and stores can hold anything.
            raise CorruptDataError(
                f"the stored {KINDS[kind]} is a {type(data).__name__}, not bytes"
            )
        header = self._headers[kind]
        if not data.startswith(header):
            self._explain(data, kind)
        payload = memoryview(data)[len(header) :]
        decoder = cast("msgspec.json.Decoder[RecordT]", self._decoders[kind])
        try:
            return decoder.decode(payload)
        except RecursionError:
            return _on_a_fresh_stack(decoder.decode, payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptDataError(
                f"the stored {KINDS[kind]} cannot be decoded: {error}"
            ) from error

    def decode_many(self, stored: Iterable[bytes], kind: type[RecordT]) -> list[RecordT]:
        """What `decode` returns for each.

        Raises:
            UnsupportedVersionError: As `decode`, for the first of which it is true.
            CorruptDataError: The same.
        """
        if type(self).decode is not Codec.decode:
            return [self.decode(data, kind) for data in stored]
        header = self._headers[kind]
        size = len(header)
        decode = cast("msgspec.json.Decoder[RecordT]", self._decoders[kind]).decode
        found: list[RecordT] = []
        for data in stored:
            # One by one: what is cut out of one record makes room for the next.
            if type(data) is bytes and data[:size] == header:
                try:
                    found.append(decode(data[size:]))
                    continue
                except (RecursionError, msgspec.MsgspecError, ValueError):
                    pass  # `decode` says what is wrong, or has more room.
            found.append(self.decode(data, kind))
        return found

    def header(self, kind: type[Record]) -> bytes:
        """What the bytes of every record of this kind begin with, for `decode_payloads`; empty if
        they are read in a way of their own.
        """
        is_ours = type(self).decode is Codec.decode and type(self).decode_many is Codec.decode_many
        return self._headers[kind] if is_ours else b""

    def decode_payloads(
        self, payloads: Iterable[bytes | None], kind: type[RecordT]
    ) -> list[RecordT] | None:
        """What `decode` returns for each, of which only what is behind its header is given.

        ``None`` if one is ``None``, or cannot be decoded.
        """
        decode = cast("msgspec.json.Decoder[RecordT]", self._decoders[kind]).decode
        try:
            return list(map(decode, cast("Iterable[bytes]", payloads)))
        except (RecursionError, msgspec.MsgspecError, ValueError, TypeError):
            return None

    def _explain(self, data: bytes, kind: type[Record]) -> None:
        """Raise what is wrong with a header that is not the usual one."""
        line, newline, _ = data[:_MAX_HEADER].partition(b"\n")
        try:
            if not newline:
                raise ValueError("no header line")
            header: Any = msgspec.json.decode(line)
            number, name = header["format"], header["kind"]
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
            raise CorruptDataError(
                f"the stored {KINDS[kind]} does not begin with an envelope: {data[:40]!r}"
            ) from error
        if isinstance(number, int) and number > FORMAT:
            raise UnsupportedVersionError(
                f"the stored {KINDS[kind]} has format {number}; this version of outlast reads "
                f"up to {FORMAT}: upgrade outlast"
            )
        raise CorruptDataError(
            f"expected a {KINDS[kind]} of format {FORMAT}, found {name!r:.40} of format "
            f"{number!r:.40}"
        )


def same_message(one: ApiMessage | UserMessage, other: ApiMessage | UserMessage) -> bool:
    """Whether two messages of one id are the same one: equal in all but ``ts``, number types
    included (A8).
    """
    return _canonical(one) == _canonical(other)


def _canonical(message: ApiMessage | UserMessage) -> bytes:
    plain = msgspec.structs.replace(message, ts=None)
    try:
        return msgspec.json.encode(plain, order="deterministic")
    except RecursionError:
        return _on_a_fresh_stack(
            lambda record: msgspec.json.encode(record, order="deterministic"), plain
        )


def _on_a_fresh_stack(function: Callable[[Any], _ResultT], argument: Any) -> _ResultT:
    """Run ``function`` on an empty stack: Python's limit counts the caller's frames too."""
    results: list[_ResultT] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(argument))
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            errors.append(error)

    thread = threading.Thread(target=run, name="outlast-codec")
    thread.start()
    thread.join()
    if errors:
        raise InvalidDataError(f"nested too deeply: {errors[0]}") from errors[0]
    return results[0]


__all__ = ["FORMAT", "KINDS", "Codec", "same_message"]
