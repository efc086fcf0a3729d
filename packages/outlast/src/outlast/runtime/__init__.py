"""The agent runtime: model turns that survive cut streams and dead processes."""

from outlast.model_api import (
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    PermanentModelError,
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
from outlast.runtime.recovery import RecoveryKind, RecoveryPlan, plan_recovery
from outlast.runtime.turn import Recovery, Turn, run_turn

__all__ = [
    "CheckpointPolicy",
    "Model",
    "ModelError",
    "ModelEvent",
    "ModelRequest",
    "PermanentModelError",
    "Recovery",
    "RecoveryKind",
    "RecoveryPlan",
    "RetryPolicy",
    "RetryableModelError",
    "RunContext",
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
    "plan_recovery",
    "run_turn",
]
