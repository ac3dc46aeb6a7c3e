"""The common part of our trainers: what a scored generation batch becomes, and how its loss is summed.

ms-swift's GRPOTrainer generates, scores, encodes and computes log-probs. From there on we differ:

    rewards [N, F] -> combined reward and validity [N] -> advantages [n, T] -> RLXBatch per micro-batch -> loss

A subclass gives the two steps that are the algorithm: `estimate_advantages` and `policy_loss`. Statistics are over
the whole generation batch of all ranks, before it is split, so that any number of ranks, micro-batches and any
padding give the same advantages.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from accelerate.utils import gather_object
from swift.rlhf_trainers import GRPOTrainer

from swift_rlx.algorithms import k2
from swift_rlx.errors import ConfigError
from swift_rlx.rewards.combination import Combination
from swift_rlx.trainers.batch import RLXBatch, Rollout, split_rows, stack_rows, window_totals
from swift_rlx.trainers.off_policy import OffPolicyMixin, per_token
from swift_rlx.trainers.reward_columns import RewardColumnsMixin
from swift_rlx.trainers.rollout_metrics import RolloutMetricsMixin
from swift_rlx.trainers.shared_prompt import SharedPromptMixin


@dataclass(frozen=True)
class PolicyLoss:
    """Sums over the rows or tokens of a micro-batch: of the loss, and of those whose ratio was clipped."""

    total: torch.Tensor
    clipped_low: torch.Tensor
    clipped_high: torch.Tensor


class PolicyGradientTrainer(
    RewardColumnsMixin, OffPolicyMixin, RolloutMetricsMixin, SharedPromptMixin, GRPOTrainer
):
    """GRPOTrainer with the advantages and the loss of a published policy-gradient algorithm."""

    loss_unit: ClassVar[Literal["row", "token"]]

    @abstractmethod
    def estimate_advantages(self, rollout: Rollout) -> torch.Tensor:
        """Advantages [n, T] of this rank's tokens, 0 where they do not train."""

    @abstractmethod
    def policy_loss(
        self,
        logprobs_BT: torch.Tensor,
        old_BT: torch.Tensor,
        batch: RLXBatch,
        weights: torch.Tensor | None = None,
    ) -> PolicyLoss:
        """The summed loss of a micro-batch, before it is divided by `batch.normalizer`.

        `weights` [B] or [B, T] correct for the policy that sampled; None where that is the policy itself.
        """

    def _prepare_algorithm_params(self) -> None:
        super()._prepare_algorithm_params()
        self._skip_proximal = False
        self._in_reference = False

    def _setup_teacher(self) -> None:
        super()._setup_teacher()
        # Without a teacher ms-swift distils the policy from itself where rows have a `teacher_prompt`.
        self._is_dynamic_self_distillation = self._has_teacher = False

    # --- log-probs -----------------------------------------------------------------------------------------------

    @property
    def kl_is_in_reward(self) -> bool:
        return bool(self.kl_in_reward) and self.beta != 0.0

    @property
    def kl_is_in_loss(self) -> bool:
        return not self.kl_in_reward and self.beta != 0.0

    def _proximal_is_current(self) -> bool:
        """True if the policy does not move between picking up a batch and its loss: one optimizer step uses it up.

        The loss's own log-probs, detached, are then the proximal ones, and a forward pass is saved.
        """
        one_step = self.args.steps_per_generation <= self.args.gradient_accumulation_steps
        is_needed = self.kl_is_in_reward or self.off_policy.ess_gate
        return self.num_iterations == 1 and one_step and not is_needed

    def _prepare_batch_inputs(self, samples: list[Any]) -> list[dict[str, Any]]:
        self._skip_proximal = self._proximal_is_current()
        try:
            return super()._prepare_batch_inputs(samples)
        finally:
            self._skip_proximal = False

    @contextmanager
    def null_ref_context(self) -> Iterator[None]:
        self._in_reference = True
        try:
            with super().null_ref_context():
                yield
        finally:
            self._in_reference = False

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if self._skip_proximal and model is self.model and not self._in_reference:
            return None, None
        return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)

    # --- advantages ----------------------------------------------------------------------------------------------

    def _postprocess_batch(self, samples: list[Any], batch_encoded_inputs: list[dict[str, Any]]) -> None:
        if self.dynamic_num_samples:
            raise ConfigError(
                "the multi-turn scheduler returned another number of rows than it was given prompts, which"
                f" --rlhf_type {self.args.rlx_type} cannot group yet; use a scheduler with one row a prompt"
            )
        batches = [encoded["grpo_batch"] for encoded in batch_encoded_inputs]
        rollout = self._scored_rollout(len(samples), batches)
        advantages_nT = self.estimate_advantages(rollout)
        loss_mask_nT = self.fresh_tokens(rollout.mask_nT) & rollout.valid_N[rollout.rows, None]
        if self.overlong_filter:
            loss_mask_nT &= ~torch.cat([batch.truncated_mask for batch in batches]).cpu()[:, None]
        device = self.accelerator.device
        self._attach(batch_encoded_inputs, batches, advantages_nT.to(device), loss_mask_nT.to(device))
        self.record_rollout(rollout, self._rewards_per_func, advantages_nT)
        if rollout.is_training:
            answers = [sample.response_token_ids or sample.messages[-1:] for sample in samples]
            self.warn_of_repeats(answers, rollout.gather)

    def _scored_rollout(self, num_rows: int, batches: list[Any]) -> Rollout:
        is_training = self.model.training
        group_size = self.num_generations if is_training else self.num_generations_eval
        group_ids = torch.arange(len(self._rewards_per_func)) // group_size
        combined = self.combined_rewards(self.usable_rows(len(group_ids)), group_ids)
        rewards = combined.rewards_B
        if self.args.reward_clip is not None:
            rewards = rewards.clamp(-self.args.reward_clip, self.args.reward_clip)
        start = self.accelerator.process_index * num_rows

        def stacked(name: str) -> torch.Tensor | None:
            parts = [getattr(batch, name) for batch in batches]
            return None if parts[0] is None else stack_rows(parts).float().cpu()

        return Rollout(
            rewards_N=rewards,
            valid_N=combined.valid_B,
            group_ids_N=group_ids,
            rows=slice(start, start + num_rows),
            mask_nT=stack_rows([batch.completion_mask for batch in batches]).bool().cpu(),
            proximal_logprobs_nT=stacked("old_per_token_logps"),
            ref_logprobs_nT=stacked("ref_per_token_logps"),
            gather=lambda values: self.accelerator.gather(values.to(self.accelerator.device)).cpu(),
            reduce_sum=self._sum_over_ranks,
            is_training=is_training,
        )

    def combined_rewards(self, usable_N: torch.Tensor, group_ids_N: torch.Tensor) -> Combination:
        """One reward a row of all ranks; rows that may not train have none, and move no statistic."""
        counted = self._rewards_per_func.cpu().masked_fill(~usable_N[:, None], torch.nan)
        combined = self.combine(counted, group_ids_N, update=self.model.training)
        self.record_objectives(combined)
        return combined

    # --- what a pipeline knows of the rows; without one they were all made by the current weights --------------

    def usable_rows(self, num_rows: int) -> torch.Tensor:
        """[num_rows] bool, of all ranks: the rows that may train, or count in an evaluation."""
        return self.eval_rows_once(num_rows)

    def fresh_tokens(self, mask_nT: torch.Tensor) -> torch.Tensor:
        """`mask_nT` without the tokens over the staleness bound."""
        return mask_nT

    def behavior_fields(self, index: int) -> dict[str, torch.Tensor]:
        """Log-probs and staleness of this rank's `index`-th micro-batch, by the names of RLXBatch."""
        return {}

    @staticmethod
    def _sum_over_ranks(vector: torch.Tensor) -> torch.Tensor:
        """A float64 vector summed over the ranks, in their order: the same on every backend and every rank."""
        return torch.tensor(gather_object([vector.tolist()]), dtype=torch.float64).sum(0)

    def _attach(
        self,
        encoded_inputs: list[dict[str, Any]],
        batches: list[Any],
        advantages_nT: torch.Tensor,
        loss_mask_nT: torch.Tensor,
    ) -> None:
        masks = [batch.completion_mask for batch in batches]
        loss_masks = split_rows(loss_mask_nT, masks)
        counts_M = torch.stack([self._count(mask) for mask in loss_masks])
        totals_M = window_totals(self.accelerator.reduce(counts_M, "sum"), self.micro_batches_per_window)
        rows = zip(
            encoded_inputs, batches, split_rows(advantages_nT, masks), loss_masks, totals_M, strict=True
        )
        for index, (encoded, batch, advantages, loss_mask, total) in enumerate(rows):
            ready = RLXBatch.of(batch, advantages, loss_mask, total)
            encoded["grpo_batch"] = replace(ready, **self.behavior_fields(index))
        is_skipped = self.gate([encoded["grpo_batch"] for encoded in encoded_inputs])
        if self.model.training:
            self.note_trained(bool(totals_M.any()) and not is_skipped)

    @property
    def micro_batches_per_window(self) -> int:
        """Over so many micro-batches of this rank a loss is one mean."""
        return int(self.args.gradient_accumulation_steps)

    def _count(self, loss_mask_BT: torch.Tensor) -> torch.Tensor:
        units = loss_mask_BT.any(1) if self.loss_unit == "row" else loss_mask_BT
        return units.sum()

    # --- loss ----------------------------------------------------------------------------------------------------

    def _compute_loss_and_metrics(
        self, model: Any, model_inputs: dict[str, Any], grpo_batch: RLXBatch
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        logprobs, entropies = self._get_per_token_logps_and_entropies(
            model, model_inputs, grpo_batch, compute_entropy=self.compute_entropy
        )
        logprobs = logprobs.float()
        old = grpo_batch.old_per_token_logps
        proximal = logprobs.detach() if old is None else old.float()
        weights = self.correct(logprobs, proximal, grpo_batch)
        policy = self.policy_loss(logprobs, proximal, grpo_batch, weights)
        total = policy.total
        if self.kl_is_in_loss:
            kl_BT = k2(logprobs, grpo_batch.ref_per_token_logps.float(), grpo_batch.loss_mask)
            kl = (kl_BT if weights is None else kl_BT * per_token(weights)).sum()
            total = total + self.beta * kl
            self.record_kl(kl.detach() * self._share(grpo_batch.normalizer))
        self.record_clipping(policy, self._share(grpo_batch.normalizer))
        metrics = {"mode": "train" if self.model.training else "eval", "entropy": {}}
        if entropies is not None:
            metrics["entropy"] = self.entropy_metrics(entropies, grpo_batch)
        # The ranks' gradients are averaged, so that a sum over ranks needs their number.
        scale = self.accelerator.num_processes * self._share(grpo_batch.normalizer)
        return total * scale.float(), metrics

    def _share(self, normalizer: torch.Tensor) -> torch.Tensor:
        """Times this, the micro-batches' sums over all ranks have the optimizer step's mean as their plain mean.

        A mean over micro-batches is what Trainer makes of losses and ms-swift of metrics. Generation batches
        shorter than the step share it evenly.
        """
        share = 1.0 / normalizer.clamp(min=1.0)
        if self.model.training:
            share = share * min(self.current_gradient_accumulation_steps, self.args.steps_per_generation)
        return share
