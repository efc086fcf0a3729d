"""outlast: LLM agents that outlast their process.

The task's state and messages, and the model turn in flight, live in a store; another process goes
on from there, and a stale process can spoil nothing.
"""

from typing import TYPE_CHECKING

from outlast.codec import Codec
from outlast.contracts import (
    Backend,
    Claim,
    DriverBackend,
    PersistenceManager,
    StreamCheckpointStore,
    SweepReport,
)
from outlast.driver import Capabilities, Driver, Scope
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    ConflictError,
    CorruptDataError,
    DecryptionError,
    FencedError,
    InvalidDataError,
    InvalidIdError,
    NotSupportedError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    StaleWriteError,
    TaskNotFoundError,
    UnavailableError,
    UnsupportedVersionError,
)
from outlast.models import (
    ApiMessage,
    PartialToolCall,
    StreamCheckpoint,
    TaskInput,
    TaskState,
    TaskStatus,
    ToolInfo,
    UserMessage,
)
from outlast.registry import BackendInfo, installed_plugins, open_backend

if TYPE_CHECKING:
    from outlast.backends.file import FileBackend
    from outlast.backends.memory import MemoryBackend
    from outlast.registry import hookimpl

__version__ = "0.1.0"

_LAZY = {
    "FileBackend": "outlast.backends.file",
    "MemoryBackend": "outlast.backends.memory",
    "hookimpl": "outlast.registry",
}


def __getattr__(name: str) -> object:
    # Imported when they are first named, so that importing the package stays cheap.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ApiMessage",
    "Backend",
    "BackendInfo",
    "Capabilities",
    "Claim",
    "ClosedError",
    "Codec",
    "ConfigurationError",
    "ConflictError",
    "CorruptDataError",
    "DecryptionError",
    "Driver",
    "DriverBackend",
    "FencedError",
    "FileBackend",
    "InvalidDataError",
    "InvalidIdError",
    "MemoryBackend",
    "NotSupportedError",
    "OutcomeUnknownError",
    "OutlastError",
    "PartialToolCall",
    "PayloadTooLargeError",
    "PersistenceManager",
    "Scope",
    "StaleWriteError",
    "StreamCheckpoint",
    "StreamCheckpointStore",
    "SweepReport",
    "TaskInput",
    "TaskNotFoundError",
    "TaskState",
    "TaskStatus",
    "ToolInfo",
    "UnavailableError",
    "UnsupportedVersionError",
    "UserMessage",
    "hookimpl",
    "installed_plugins",
    "open_backend",
]
