"""The agent runtime: model turns that survive cut streams and dead processes."""

from outlast.model_api import (
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    PermanentModelError,
    ProviderData,
    RetryableModelError,
    StreamEnd,
    ToolSpec,
)
from outlast.runtime.accumulator import StreamAccumulator
from outlast.runtime.context import CheckpointPolicy, RetryPolicy, RunContext
from outlast.runtime.events import (
    StreamEvent,
    StreamReset,
    TextDelta,
    ToolCallCancelled,
    ToolCallDelta,
    ToolCallReady,
)
from outlast.runtime.merging import deep_merge
from outlast.runtime.messages import MessageManager
from outlast.runtime.recovery import RecoveryKind, RecoveryPlan, plan_recovery
from outlast.runtime.state import StateManager
from outlast.runtime.turn import Recovery, Turn, run_turn

__all__ = [
    "CheckpointPolicy",
    "MessageManager",
    "Model",
    "ModelError",
    "ModelEvent",
    "ModelRequest",
    "PermanentModelError",
    "ProviderData",
    "Recovery",
    "RecoveryKind",
    "RecoveryPlan",
    "RetryPolicy",
    "RetryableModelError",
    "RunContext",
    "StateManager",
    "StreamAccumulator",
    "StreamEnd",
    "StreamEvent",
    "StreamReset",
    "TextDelta",
    "ToolCallCancelled",
    "ToolCallDelta",
    "ToolCallReady",
    "ToolSpec",
    "Turn",
    "deep_merge",
    "plan_recovery",
    "run_turn",
]
