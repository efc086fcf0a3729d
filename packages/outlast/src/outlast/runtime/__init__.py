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
from outlast.runtime.agent import Agent
from outlast.runtime.callbacks import InterruptedCall, TaskCallbacks
from outlast.runtime.context import CheckpointPolicy, RetryPolicy, RunContext
from outlast.runtime.events import (
    StreamEvent,
    StreamReset,
    TextDelta,
    ToolCallCancelled,
    ToolCallDelta,
    ToolCallReady,
)
from outlast.runtime.history import Repair, check_history, repair_history
from outlast.runtime.merging import deep_merge
from outlast.runtime.messages import MessageManager
from outlast.runtime.recoverer import RecoveryReport, recover
from outlast.runtime.recovery import RecoveryKind, RecoveryPlan, plan_recovery
from outlast.runtime.state import StateManager
from outlast.runtime.status import TRANSITIONS, check_transition
from outlast.runtime.task import Task
from outlast.runtime.tools import SubtaskResult, Tool, ToolContext, tool
from outlast.runtime.turn import Recovery, Turn, run_turn

__all__ = [
    "TRANSITIONS",
    "Agent",
    "CheckpointPolicy",
    "InterruptedCall",
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
    "RecoveryReport",
    "Repair",
    "RetryPolicy",
    "RetryableModelError",
    "RunContext",
    "StateManager",
    "StreamAccumulator",
    "StreamEnd",
    "StreamEvent",
    "StreamReset",
    "SubtaskResult",
    "Task",
    "TaskCallbacks",
    "TextDelta",
    "Tool",
    "ToolCallCancelled",
    "ToolCallDelta",
    "ToolCallReady",
    "ToolContext",
    "ToolSpec",
    "Turn",
    "check_history",
    "check_transition",
    "deep_merge",
    "plan_recovery",
    "recover",
    "repair_history",
    "run_turn",
    "tool",
]
