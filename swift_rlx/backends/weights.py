"""What `publish` hands to an engine: files in shared memory, and a probe that tells whether they are served."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from swift_rlx.types import FloatArray, IntArray


class WeightKind(enum.Enum):
    """What the files hold."""

    FULL = "full"
    """Every parameter of the model under its Hugging Face name, in one or more `*.safetensors`, tied ones once."""
    ADAPTER = "adapter"
    """A PEFT adapter: `adapter_config.json` and `adapter_model.safetensors`, to be put on the starting weights."""


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """Log-probs of a fixed text under the published weights: `logprobs[t]` is of `token_ids[t + 1]`, [T - 1].

    An engine whose own differ by more than `tolerance` nats at any token does not serve these weights.
    """

    token_ids: IntArray
    logprobs: FloatArray
    tolerance: float

    def difference(self, served: FloatArray, places: IntArray | None = None) -> float:
        """The largest absolute difference to what an engine found, in nats; infinite where one is not finite.

        `places`: of the tokens that `served` [P] is of; None: all but the first.
        """
        expected = self.logprobs if places is None else self.logprobs[places - 1]
        apart = np.abs(np.asarray(served, np.float64) - expected)
        return float(apart.max()) if np.isfinite(apart).all() else float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class WeightFiles:
    """Published weights: a directory that stays as it is until every worker has taken them."""

    kind: WeightKind
    directory: str
    probe: Probe | None = None
