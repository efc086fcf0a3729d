"""Defects of sending together what is called together."""

import asyncio
from functools import partial

from broken_backends.kit import mutant
from outlast.backends.memory import MemoryDriver
from outlast.contracts.driver_persistence import DriverPersistence


class Together(MemoryDriver):
    """Does the writes that are called in one turn of the event loop in one go."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._waiting = []

    async def append(self, *arguments, **options):
        return await self._joined(partial(super().append, *arguments, **options))

    async def write(self, *arguments, **options):
        return await self._joined(partial(super().write, *arguments, **options))

    async def _joined(self, call):
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        await asyncio.sleep(0)
        together, self._waiting = self._waiting, []
        if together:
            calls, answers = zip(*together, strict=True)
            found = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
            self.tell(answers, found)
        return await answer

    def tell(self, answers, found):
        """Give each call what became of it."""
        for answer, one in zip(answers, found, strict=True):
            if answer.done():
                continue
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)


@mutant("E2")
class ARefusalIsOfAll(Together):
    """Writes that are sent together are all told of the refusal that one of them met."""

    def tell(self, answers, found):
        refused = [one for one in found if isinstance(one, Exception)]
        super().tell(answers, refused[:1] * len(found) or found)


@mutant("E2")
class AnswersGoToTheNext(Together):
    """Writes that are sent together are each told what became of the one before."""

    def tell(self, answers, found):
        super().tell(answers, [*found[-1:], *found[:-1]])


@mutant("X1", "A4", "V1")
class TheFirstCallerSendsForAll(DriverPersistence):
    """Appends that are called together end with the first of their callers."""

    _waiting = ()

    async def append_api_message(self, task_id, message, *, claim=None):
        append = partial(super().append_api_message, task_id, message, claim=claim)
        answer = asyncio.get_running_loop().create_future()
        if self._waiting:
            self._waiting.append((append, answer))
            return await answer
        self._waiting = [(append, answer)]
        together = []
        try:
            await asyncio.sleep(0)
            together, self._waiting = self._waiting, ()
            calls = (call() for call, _ in together)
            found = await asyncio.gather(*calls, return_exceptions=True)
        except asyncio.CancelledError:
            for _, one in together or self._waiting:
                one.cancel()
            self._waiting = ()
            raise
        for (_, one), result in zip(together, found, strict=True):
            if one.done():
                continue
            if isinstance(result, Exception):
                one.set_exception(result)
            else:
                one.set_result(result)
        return await answer
