"""An offline objective in the place of the policy gradient: planned on a whole generation batch, summed by micro-batch.

    rows of all ranks -> objective.plan -> plan.loss per micro-batch -> mean over optimizer steps

The plan is made of numbers gathered over the ranks, so that any number of ranks and micro-batches gives the same loss.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from swift.rlhf_trainers.grpo_trainer import entropy_from_logits, selective_log_softmax
from swift.trainers import disable_gradient_checkpointing

from swift_rlx.algorithms.offline import MicroBatch, OfflineObjective, Plan, StoredRows
from swift_rlx.errors import CheckpointError
from swift_rlx.trainers.batch import RLXBatch, Rollout


class ObjectiveLossMixin:
    """For a PolicyGradientTrainer. Without an `objective` it does nothing; an evaluation is none of its business."""

    objective: OfflineObjective | None = None
    objective_name = ""
    _rollout: Rollout | None = None
    _stored_rows: StoredRows | None = None
    _plan: Plan | None = None

    def source_scores(self) -> torch.Tensor | None:
        """[N, F] scores by source of all rows of the generation batch, for objectives that compare; else None."""
        return None

    @property
    def _trains_objective(self) -> bool:
        return self.objective is not None and self.model.training

    def _proximal_is_current(self) -> bool:
        return self.objective is not None or super()._proximal_is_current()

    # --- plan ----------------------------------------------------------------------------------------------------

    def estimate_advantages(self, rollout: Rollout) -> torch.Tensor:
        if not self._trains_objective:
            return super().estimate_advantages(rollout)
        self._rollout = rollout
        return torch.zeros(rollout.mask_nT.shape)

    def _attach(
        self,
        encoded_inputs: list[dict[str, Any]],
        batches: list[Any],
        advantages_nT: torch.Tensor,
        loss_mask_nT: torch.Tensor,
    ) -> None:
        super()._attach(encoded_inputs, batches, advantages_nT, loss_mask_nT)
        if not self._trains_objective:
            return
        rollout, self._rollout = self._rollout, None
        tokens_N = rollout.gather(loss_mask_nT.sum(1))
        self._stored_rows = StoredRows(
            group_ids_B=rollout.group_ids_N,
            tokens_B=tokens_N,
            valid_B=rollout.valid_N & (tokens_N > 0),
            rewards_B=rollout.rewards_N.double(),
            scores_BF=self.source_scores() if self.objective.needs.pairwise else None,
            progress=self.state.global_step / max(self.state.max_steps, 1),
        )
        self._plan = self.objective.plan(self._stored_rows)
        for name, value in self._plan.metrics.items():
            self._metrics["train"][name].append(value)
        start = rollout.rows.start
        for encoded in encoded_inputs:
            batch = encoded["grpo_batch"]
            end = start + len(batch.loss_mask)
            encoded["grpo_batch"] = replace(batch, rows=torch.arange(start, end))
            start = end

    # --- loss ----------------------------------------------------------------------------------------------------

    def _compute_loss_and_metrics(
        self, model: Any, model_inputs: dict[str, Any], grpo_batch: RLXBatch
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        if grpo_batch.rows is None:
            return super()._compute_loss_and_metrics(model, model_inputs, grpo_batch)
        part, entropies = self._micro_batch(model, model_inputs, grpo_batch)
        found = self._plan.loss(part)
        self._record_parts(found.metrics)
        metrics: dict[str, Any] = {"mode": "train", "entropy": {}}
        if entropies is not None:
            metrics["entropy"] = self.entropy_metrics(entropies, grpo_batch)
        # The Trainer takes the mean over micro-batches, and DDP the mean over ranks: their numbers make it the sum.
        scale = self.accelerator.num_processes * self.args.steps_per_generation
        return found.loss.float() * scale, metrics

    def _micro_batch(
        self, model: Any, model_inputs: dict[str, Any], batch: RLXBatch
    ) -> tuple[MicroBatch, torch.Tensor | None]:
        width = batch.loss_mask.shape[1]
        needs, ids = self.objective.needs, model_inputs["input_ids"][:, -width:]
        if not needs.logits:
            logprobs, entropies = self._get_per_token_logps_and_entropies(
                model, model_inputs, batch, compute_entropy=self.compute_entropy
            )
            return MicroBatch(batch.rows, batch.loss_mask, logprobs.float(), token_ids_bT=ids), entropies
        frozen = self._frozen_logits(model_inputs, width) if needs.reference or needs.target else None
        logits = self._logits(model, model_inputs, width)
        entropies = None
        if self.compute_entropy:
            with torch.no_grad():
                entropies = entropy_from_logits(logits)
        return MicroBatch(
            batch.rows,
            batch.loss_mask,
            selective_log_softmax(logits, ids).float(),
            token_ids_bT=ids,
            logits_bTV=logits,
            reference_logits_bTV=frozen if needs.reference else None,
            target_logits_bTV=frozen if needs.target else None,
        ), entropies

    def _logits(self, model: Any, model_inputs: dict[str, Any], width: int) -> torch.Tensor:
        """[B, width, V] of the completions' places alone: a prompt's would be the larger part of the memory."""
        inputs = dict(model_inputs)
        if "use_cache" in self.model_kwarg_keys:
            inputs["use_cache"] = False
        if "logits_to_keep" in self.model_kwarg_keys:
            inputs["logits_to_keep"] = width + 1
        logits = model(**inputs).logits[:, -(width + 1) : -1]
        return logits if self.temperature == 1.0 else logits / self.temperature

    @torch.no_grad()
    def _frozen_logits(self, model_inputs: dict[str, Any], width: int) -> torch.Tensor:
        """Of the reference model, or of the model without its adapter."""
        checkpointing = self.args.gradient_checkpointing_kwargs
        if self.ref_model is not None:
            with disable_gradient_checkpointing(self.ref_model, checkpointing):
                return self._logits(self.ref_model, model_inputs, width)
        with self.null_ref_context(), disable_gradient_checkpointing(self.model, checkpointing):
            return self._logits(self.model, model_inputs, width)

    def _record_parts(self, metrics: Mapping[str, float]) -> None:
        """Parts of sums over the generation batch: their mean over its micro-batches becomes the sum."""
        if not metrics:
            return
        values = torch.tensor(list(metrics.values()), dtype=torch.float64)
        total = self._sum_over_ranks(values) * self.args.steps_per_generation
        for name, value in zip(metrics, total.tolist(), strict=True):
            self._metrics["train"][name].append(value)

    # --- resume --------------------------------------------------------------------------------------------------

    def algorithm_state(self) -> dict[str, Any]:
        state = super().algorithm_state()
        if self.objective is None:
            return state
        rows = None if self._stored_rows is None else _as_lists(self._stored_rows)
        return state | {"objective": self.objective_name, "kept": self.objective.state(), "rows": rows}

    def load_algorithm_state(self, state: dict[str, Any]) -> None:
        super().load_algorithm_state(state)
        saved = state.get("objective", "")
        if saved != self.objective_name:
            raise CheckpointError(
                f"the checkpoint was trained by the offline objective {saved or 'rloo_is'}, this run's is"
                f" {self.objective_name or 'rloo_is'}; use the same, or take only the weights with --resume_only_model"
                " true"
            )
        if self.objective is None:
            return
        self.objective.load_state(state["kept"])
        if state["rows"] is not None:  # of the generation batch that the checkpoint may be in the middle of
            self._stored_rows = _from_lists(state["rows"])
            self._plan = self.objective.plan(self._stored_rows)


def _as_lists(rows: StoredRows) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in asdict(rows).items()
    }


def _from_lists(lists: Mapping[str, Any]) -> StoredRows:
    dtypes = {"valid_B": torch.bool, "rewards_B": torch.float64, "scores_BF": torch.float64}
    return StoredRows(
        **{
            name: torch.tensor(value, dtype=dtypes.get(name, torch.int64))
            if isinstance(value, list)
            else value
            for name, value in lists.items()
        }
    )
