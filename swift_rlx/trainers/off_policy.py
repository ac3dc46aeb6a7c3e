"""Training on samples of older weights: decoupled PPO, its metrics, and a gate.

Three policies: behavior (sampled the token), proximal (the trainer's weights when the batch was picked up, the center
of PPO's clip) and the current one.

    loss = w * (clipped surrogate of current / proximal)       w = f(proximal / behavior), without gradient

What w is 0 for keeps its place in the denominator. Without `RLXBatch.behavior_logprobs` nothing here does anything.
Behavior log-probs are there on all ranks or on none: the metrics are summed over the ranks, once per log line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from swift.utils import get_logger

from swift_rlx.algorithms import (
    BUCKET_EDGES,
    OffPolicyMeter,
    OffPolicySummary,
    importance_weights,
    k3_row_filter,
    off_policy_sequence_mask,
)
from swift_rlx.trainers.batch import RLXBatch

logger = get_logger()
WARN_BELOW_ESS, WARN_ABOVE_K3 = 0.7, 0.01
GATE_ESS_TOKEN, GATE_ESS_SEQ = 0.5, 0.1
PRODUCTS = ("sequence_product", "prefix_product")
TOTALS = (
    "ess_token",
    "ess_seq",
    "kl_k1",
    "kl_k3",
    "second_moment",
    "chi2_token",
    "chi2_seq",
    "max_log_ratio",
    "clipped_low",
    "clipped_high",
    "rows_dropped",
)
"""Logged as offpolicy/<name>, defined in `algorithms.off_policy_meter`."""
PARTS = ("ess_token", "kl_k3", "clipped_low", "clipped_high")
"""Logged for each part: offpolicy/staleness_<bucket>/<name>, offpolicy/positive/<name>, offpolicy/negative/<name>."""


def per_token(weights: torch.Tensor) -> torch.Tensor:
    """Weights [B] or [B, T] in a shape that multiplies [B, T]."""
    return weights if weights.ndim == 2 else weights[:, None]


@dataclass(frozen=True)
class OffPolicyOptions:
    """`mode` is a rule of `importance_weights`; None switches a filter off."""

    mode: str
    cap: float = 2.0
    sequence_mask_delta: float | None = None
    k3_max: float | None = None
    ess_gate: bool = False

    @property
    def gate_quantity(self) -> tuple[str, float]:
        """What the gate looks at, and the smallest value that it lets pass: of the weights that are in use."""
        return ("ess_seq", GATE_ESS_SEQ) if self.mode in PRODUCTS else ("ess_token", GATE_ESS_TOKEN)


class OffPolicyMixin:
    """For PolicyGradientTrainer, which calls `correct` in its loss and `gate` for each generation batch."""

    def _prepare_algorithm_params(self) -> None:
        super()._prepare_algorithm_params()
        args = self.args
        self.off_policy = OffPolicyOptions(
            mode=args.off_policy_correction,
            cap=args.off_policy_cap,
            sequence_mask_delta=args.off_policy_sequence_mask_delta,
            k3_max=args.off_policy_k3_max,
            ess_gate=args.ess_gate,
        )
        self._prepare_off_policy()

    def _prepare_off_policy(self) -> None:
        self._off_policy_meter = OffPolicyMeter()
        self._stored_meter = OffPolicyMeter()  # of batches from a trajectory store, which are counted apart
        self._has_behavior = False  # true from the first batch that says who sampled it
        self._has_stored = False
        self._was_far_off = False

    # --- weights -------------------------------------------------------------------------------------------------

    def correct(
        self, logprobs_BT: torch.Tensor, proximal_BT: torch.Tensor, batch: RLXBatch
    ) -> torch.Tensor | None:
        """Weights of a micro-batch, [B] or [B, T], without gradient; None if the policy itself sampled it."""
        if batch.behavior_logprobs is None:
            return None
        options, behavior, sampled = self.off_policy, batch.behavior_logprobs, _sampled(batch)
        found = importance_weights(options.mode, proximal_BT, behavior, sampled, options.cap)
        kept_B = torch.ones_like(sampled[:, 0])
        if options.sequence_mask_delta is not None:
            kept_B &= off_policy_sequence_mask(
                logprobs_BT, behavior, batch.advantages, sampled, options.sequence_mask_delta
            )
        if options.k3_max is not None:
            kept_B &= k3_row_filter(proximal_BT, behavior, sampled, options.k3_max)
        if self.model.training:
            _measure(self._meter_of(batch), proximal_BT, batch, weights=found, kept_B=kept_B)
        kept = per_token(kept_B) if found.weights.ndim == 2 else kept_B
        return found.weights * kept

    # --- gate ----------------------------------------------------------------------------------------------------

    def gate(self, batches: Sequence[RLXBatch]) -> bool:
        """With `--ess_gate`, take a generation batch out of the loss that is too far from the policy, in place.

        Called on all ranks with their micro-batches, whose proximal log-probs are there. The batch keeps its place
        in the denominators, so that its loss and gradient are 0. True if it was taken out.
        """
        if not (self.off_policy.ess_gate and self.model.training) or batches[0].behavior_logprobs is None:
            return False
        meter = OffPolicyMeter()
        for batch in batches:
            _measure(meter, batch.old_per_token_logps.float(), batch)
        summary = _over_ranks(meter).summary()
        name, least = self.off_policy.gate_quantity
        is_far_off = summary is not None and getattr(summary, name) < least
        kind = "stored/" if batches[0].is_stored else ""
        self._metrics["train"][f"offpolicy/{kind}batches_skipped"].append(float(is_far_off))
        if not is_far_off:
            return False
        logger.warning(
            f"generation batch skipped by --ess_gate: {name} is {getattr(summary, name):.3g}, below {least:g}; its"
            f" samples are too far from the policy. Lower {'--max_store_age' if kind else '--max_staleness'} or the"
            " learning rate if this goes on."
        )
        self._meter_of(batches[0]).merge(meter.state)
        for batch in batches:
            batch.loss_mask = torch.zeros_like(batch.loss_mask)
        self.refresh_rollouts()
        return True

    def refresh_rollouts(self) -> None:
        """Called on all ranks after the gate skipped a batch; a trainer with samples in stock has them made again."""

    # --- metrics -------------------------------------------------------------------------------------------------

    def _meter_of(self, batch: RLXBatch) -> OffPolicyMeter:
        """Of the batches of its kind; all ranks have the same kind at a time."""
        if batch.is_stored:
            self._has_stored = True
            return self._stored_meter
        self._has_behavior = True
        return self._off_policy_meter

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.model.training and self._has_behavior:
            self._record_off_policy()
        if self.model.training and self._has_stored:
            self._record_stored()
        super().log(logs, *args, **kwargs)

    def _record_off_policy(self) -> None:
        """One collective; every rank logs at the same steps."""
        meter, self._off_policy_meter = _over_ranks(self._off_policy_meter), OffPolicyMeter()
        total = meter.summary()
        if total is None:
            return
        metrics = self._metrics["train"]
        for name in TOTALS:
            metrics[f"offpolicy/{name}"].append(getattr(total, name))
        parts = {
            f"staleness_{bucket}": meter.summary(bucket) for bucket in buckets_within(self.args.max_staleness)
        }
        for bucket, part in parts.items():
            metrics[f"offpolicy/{bucket}/share"].append(part.tokens / total.tokens if part else 0.0)
        parts |= {sign: meter.summary(sign) for sign in ("positive", "negative")}
        for cell, part in parts.items():
            for name in PARTS if part else ():
                metrics[f"offpolicy/{cell}/{name}"].append(getattr(part, name))
        self._warn_far_off(total)

    def _record_stored(self) -> None:
        """The same for batches from the store, as offpolicy/stored/<name>."""
        meter, self._stored_meter = _over_ranks(self._stored_meter), OffPolicyMeter()
        if (total := meter.summary()) is not None:
            for name in TOTALS:
                self._metrics["train"][f"offpolicy/stored/{name}"].append(getattr(total, name))

    def _warn_far_off(self, total: OffPolicySummary) -> None:
        """When it begins, and again when it begins anew."""
        is_far_off = total.ess_token < WARN_BELOW_ESS or total.kl_k3 > WARN_ABOVE_K3
        if is_far_off and not self._was_far_off:
            logger.warning(
                f"the samples are far from the policy that trains on them: effective sample size"
                f" {total.ess_token:.2f} of the tokens (good: {WARN_BELOW_ESS} or more), k3 {total.kl_k3:.3g} nats per"
                f" token (good: {WARN_ABOVE_K3} or less). Lower --max_staleness or the learning rate."
            )
        self._was_far_off = is_far_off


def buckets_within(max_staleness: int) -> list[str]:
    """The buckets that a sample under the staleness bound can be in."""
    names, begin = [], 0
    for name, edge in BUCKET_EDGES.items():
        if begin <= max_staleness:
            names.append(name)
        begin = begin if edge is None else edge + 1
    return names


def _sampled(batch: RLXBatch) -> torch.Tensor:
    """[B, T] all sampled tokens of the rows that train: those over age are part of a product, too."""
    return batch.completion_mask.bool() & batch.loss_mask.any(1, keepdim=True)


def _measure(meter: OffPolicyMeter, proximal_BT: torch.Tensor, batch: RLXBatch, **found: Any) -> None:
    meter.add(
        proximal_BT,
        batch.behavior_logprobs,
        batch.loss_mask,
        batch.advantages,
        sampled_BT=_sampled(batch),
        staleness_BT=batch.staleness,
        **found,
    )


def _over_ranks(meter: OffPolicyMeter) -> OffPolicyMeter:
    merged = OffPolicyMeter()
    for state in gather_object([meter.state.tolist()]):
        merged.merge(torch.tensor(state, dtype=torch.float64))
    return merged
