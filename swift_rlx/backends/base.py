"""The protocol of a rollout backend and the records that it takes and gives.

One backend object stands for one worker (replica). All calls come from one asyncio loop. A backend reports what
it cannot do by raising a `BackendError`: `BackendTimeout` and `BackendUnavailable` move the request to another
worker, `BackendRejected` does not. Anything else that it raises is taken for `BackendUnavailable`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from swift_rlx.backends.progress import OnProgress, unwatched
from swift_rlx.errors import ConfigError
from swift_rlx.types import Chunk, Completion, PolicyVersion, Prompt, SamplingParams


class WeightUpdate(enum.Enum):
    """What happens to answers in flight when weights are published."""

    KEEP = "keep"
    """They go on under the new weights; later tokens carry the new version."""
    PIN = "pin"
    """They finish on the version they began with."""
    DRAIN = "drain"
    """The worker gets no new request, and the weights, once its last answer has finished."""
    ABORT = "abort"
    """They are cut and begun again; an answer that was cut once is waited for the next time."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a worker can do. `drain` needs nothing from it, and every backend has to offer `abort`."""

    keep: bool = False
    """`publish` may be called with answers in flight, whose later tokens come from the new weights."""
    pin: bool = False
    """`publish` may be called with answers in flight, which finish on their version."""
    streams: bool = False
    """It tells of tokens at least every few seconds while it makes some; so one that tells nothing has stalled."""

    def can(self, mode: WeightUpdate) -> bool:
        """Whether weights can be published that way."""
        return {WeightUpdate.KEEP: self.keep, WeightUpdate.PIN: self.pin}.get(mode, True)


@dataclass(frozen=True, slots=True, eq=False)
class GenerationRequest:
    """One completion to be made. `request_id` is unique among the requests in flight.

    `attempt`: how often it was sent, this time included, whether or not that counted against it. `prefix`: the first
    tokens of the answer, from place 0 on, which an earlier attempt has sampled from weights that are not newer than the
    worker's. `is_suspect`: workers died under it before, so a further death says nothing against its worker.
    """

    request_id: str
    prompt: Prompt
    member: int
    sampling: SamplingParams
    attempt: int = 1
    submit_s: float = 0.0
    prefix: Chunk | None = None
    is_suspect: bool = False

    @property
    def tokens_to_read(self) -> int:
        """Before the first new token."""
        return len(self.prompt.token_ids) + (0 if self.prefix is None else self.prefix.num_tokens)


@dataclass(frozen=True, slots=True)
class Health:
    """A worker's own statement: the version that it serves to new requests."""

    version: PolicyVersion


class Backend(Protocol):
    """One worker."""

    @property
    def name(self) -> str:
        """Unique among the workers of a run; appears in messages and metrics."""

    @property
    def capabilities(self) -> Capabilities:
        """Read once, at the start."""

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        """The answer, with token ids as sampled, and log-probability and policy version of each token.

        After `abort` of the request: the tokens made so far, with finish reason ABORT. Raises `BackendError`.

        The answer begins with as much of `request.prefix` as the worker goes on behind, unchanged; all limits of the
        sampling are of the whole answer. A worker that cannot go on begins anew.

        `on_progress` gets the tokens as they come, from the loop; it does not raise. The last token of an answer is
        told by the return alone: what was told is always the beginning of an answer that goes on.
        """

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these requests soon; unknown ids are ignored."""

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """Serve these weights to every request that starts after the return, prefix caches reset."""

    async def health(self) -> Health:
        """Raises `BackendError` where the worker cannot serve, `WorkerAbsent` while it is being started."""

    async def close(self) -> None:
        """End the worker and free what it holds; may be called twice."""


def resolve_weight_update(requested: WeightUpdate | None, backends: Sequence[Backend]) -> WeightUpdate:
    """The mode for a run; None means the first of `keep`, `pin` and `drain` that every worker can.

    With `pin` and `drain` an answer has the same weights from its beginning to its end; `pin` has no idle time.
    Raises `ConfigError` for a mode that a worker lacks.
    """
    if requested is None:
        wishes = (WeightUpdate.KEEP, WeightUpdate.PIN, WeightUpdate.DRAIN)
        return next(mode for mode in wishes if all(one.capabilities.can(mode) for one in backends))
    for backend in backends:
        if not backend.capabilities.can(requested):
            can = ", ".join(mode.value for mode in WeightUpdate if backend.capabilities.can(mode))
            raise ConfigError(
                f"weight_update '{requested.value}' is refused: worker '{backend.name}' can {can}; choose one of these"
            )
    return requested
