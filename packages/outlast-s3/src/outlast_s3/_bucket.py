"""Requests to one bucket: boto3 in a bounded pool of threads, within the time of each call."""

import asyncio
import contextlib
import time
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from hashlib import md5
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast.heads import StoreClock, moment
from outlast_s3._boto import endpoint_of, repeats
from outlast_s3._errors import refusal_of, translate
from outlast_s3._lines import Line, using
from outlast_s3._logs import hide_secrets

_CLOCK_AGE: Final = 300.0
"""Seconds for which the time in an answer is good; each answer brings it anew."""


class Answer(NamedTuple):
    """What the store answered.

    Attributes:
        fields: As boto3 returns them.
        body: Of an object, read to its end.
    """

    fields: Mapping[str, Any]
    body: bytes

    @property
    def etag(self) -> str:
        """Stands for what is stored under the key now."""
        return str(self.fields["ETag"])


class Bucket:
    """A bucket, and the threads in which boto3 works on it."""

    def __init__(self, client: Any, name: str, described: str, *, user: str, threads: int) -> None:
        """Make it; no I/O.

        Args:
            client: Of boto3.
            name: Of the bucket.
            described: Which bucket where, for people.
            user: Tells clients with different rights apart.
            threads: How many requests may be under way at once; others wait.
        """
        hide_secrets()
        self.described = described
        self.threads = threads
        self.access = endpoint_of(client), name, user
        self._client = client
        self._name = name
        self._repeats = repeats(client)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="outlast-s3")
        self._requests: dict[asyncio.Future[Answer], Line] = {}
        self._clock = StoreClock(resolution=1.0, max_age=_CLOCK_AGE)

    async def send(
        self,
        deadline: float,
        method: str,
        parameters: Mapping[str, Any] = MappingProxyType({}),
        *,
        changes: bool = False,
    ) -> Answer | None:
        """Send one request.

        Args:
            deadline: The `outlast.heads.moment` until which to wait. The connection of a request
                that takes longer is cut; what the store makes of it later, its condition decides.
            method: Of the client.
            parameters: Of the method, without the bucket.
            changes: Whether an unanswered request leaves the outcome open.

        Returns:
            The answer; ``None``: a condition did not hold, or there is no such object.
        """
        line = Line()
        request = self._pool.submit(self._work, line, method, parameters)
        answer = asyncio.wrap_future(request)
        self._requests[answer] = line
        # Also if its caller is gone by then: an answer that never ends would keep the thread.
        end = asyncio.get_running_loop().call_later(max(0.0, deadline - moment()), line.cut)
        answer.add_done_callback(lambda _: end.cancel())
        answer.add_done_callback(self._ended)
        try:
            await asyncio.wait([answer], timeout=max(0.0, deadline - moment()))
        except asyncio.CancelledError:
            request.cancel()
            raise
        if not answer.done():
            raise self._late(request, line, changes=changes)
        try:
            return answer.result()
        except Exception as error:
            refusal = refusal_of(error)
            # After a repetition that nobody asked for, it may be one's own success (E2).
            if refusal is not None and refusal.is_race and not (changes and refusal.attempts):
                return None
            if line.is_cut:
                raise self._late(request, line, changes=changes) from error
            raise translate(
                error, self.described, changes=changes, repeats=self._repeats
            ) from error

    async def now(self, deadline: float) -> float:
        """The store's time, asked for if no answer told it lately."""
        now = self._clock.now()
        if now is None:
            await self.send(deadline, "head_bucket")
            now = self._clock.now()
        return time.time() if now is None else now

    async def close(self, timeout: float) -> None:
        """Wait for requests that nobody waits for any more, at most ``timeout`` seconds."""
        try:
            if self._requests:
                await asyncio.wait(self._requests, timeout=timeout)
        finally:
            for line in self._requests.values():
                line.cut()
            # Idle threads end at once; one that still waits for an answer cannot be waited for.
            self._pool.shutdown(wait=not self._requests, cancel_futures=True)

    def _ended(self, answer: "asyncio.Future[Answer]") -> None:
        self._requests.pop(answer, None)
        if not answer.cancelled():
            answer.exception()  # Nobody may be there to be told.

    def _late(
        self, request: "Future[Answer]", line: Line, *, changes: bool
    ) -> OutcomeUnknownError | UnavailableError:
        line.cut()
        if request.cancel() or not line.has_begun:
            return UnavailableError(
                f"not sent: all {self.threads} connections to {self.described} are in use"
            )
        text = f"{self.described} did not answer in time"
        return OutcomeUnknownError(text) if changes else UnavailableError(text)

    def _work(self, line: Line, method: str, parameters: Mapping[str, Any]) -> Answer:
        """In a thread."""
        checked = _checked(parameters)
        sent = moment()
        line.begin()
        with using(line):
            fields = getattr(self._client, method)(Bucket=self._name, **checked)
            self._tell(fields, sent)
            stream = fields.get("Body")
            return Answer(fields, b"" if stream is None else stream.read())

    def _tell(self, fields: Mapping[str, Any], sent: float) -> None:
        headers = fields.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        with contextlib.suppress(KeyError, ValueError):
            told = parsedate_to_datetime(headers["date"]).timestamp()
            self._clock.tell(told, sent=sent, received=moment())


def _checked(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """With a digest of the body, if there is one.

    Without it a store may take what arrived for the whole, if the sender dies: SeaweedFS put an
    empty object in the place of a record when its connection was lost behind the headers.
    """
    body = parameters.get("Body")
    if body is None:
        return parameters
    digest = md5(body, usedforsecurity=False).digest()
    return {**parameters, "ContentMD5": b64encode(digest).decode()}


__all__ = ["Answer", "Bucket"]
