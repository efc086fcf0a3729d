"""Defects of what a deletion goes by when a run has no checkpoint."""

from broken_backends.kit import mutant
from outlast.backends.memory import MemoryDriver
from outlast.driver import Index


@mutant("C1")
class ARemovedRunForgetsItsThread(MemoryDriver):
    """A tombstone does not say to which thread its run belonged."""

    async def remove(self, scope, *, fence):
        await super().remove(scope, fence=fence)
        record = self._find(scope)
        if record is not None:
            record.index = Index()
