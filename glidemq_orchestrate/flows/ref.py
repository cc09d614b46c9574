"""References to generations of flows, and the choices for a flow that exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowCancelled,
    FlowFailed,
    Superseded,
)
from glidemq_orchestrate.flows.spec import FlowOutcome, FlowState, FlowStatus
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.wire.keys import QueueKeys, read_generation

OnExisting = Literal["attach", "retry_failed", "restart"]


Path = Literal["staged", "portable"]


BROKEN: Final = (FlowState.FAILED, FlowState.CANCELLED)


_ON_EXISTING: Final[tuple[str, ...]] = get_args(OnExisting)


@dataclass(frozen=True, slots=True)
class FlowRef:
    """A reference to a generation of a flow: its home queue, its stored id, and its path."""

    home: QueueKeys
    flow_id: str
    path: Path = "staged"

    @property
    def public_id(self) -> str:
        """The id of the flow that users see."""
        return read_generation(self.flow_id)[0]

    @property
    def generation(self) -> int:
        """The number of the generation."""
        return read_generation(self.flow_id)[1]


def check_on_existing(on_existing: str) -> None:
    """Check the choice for an existing flow.

    Raises:
        ConfigurationError: There is no such choice.
    """
    if on_existing not in _ON_EXISTING:
        raise ConfigurationError(
            f"on_existing must be one of {', '.join(_ON_EXISTING)}, got {described(on_existing)}"
        )


def raise_if_superseded(state: FlowStatus) -> None:
    """Refuse to continue with a superseded generation.

    Raises:
        Superseded: Another generation has begun.
    """
    if state.superseded_by is not None:
        raise Superseded(
            f"generation {state.generation} of flow {state.id} was superseded "
            f"by generation {state.superseded_by}"
        )


def raise_unless_completed(ended: FlowOutcome) -> None:
    """Raise the error for a caller that needs the results of a flow that did not complete."""
    state = ended.status
    if state.state is FlowState.FAILED:
        failure = FlowFailed(state.id, ended.failed)
        failure.add_note(
            f"Fix: to rerun what did not complete: flow.retry_failed(), or glidemq flow retry {state.id}. "
            "To rerun all of it: flow.restart(), or glidemq flow restart"
        )
        raise failure
    if state.state is FlowState.CANCELLED:
        raise FlowCancelled(state.id, state.reason)
