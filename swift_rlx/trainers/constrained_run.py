"""`--constraint_filter` in a run on stored groups: what is unlike the store's rest does not train, or costs reward.

reject      their tokens leave the loss; they keep their place in its denominator, and their reward in the baseline
penalty:X   their reward is lower by X for each constraint that does not hold, before the baseline
"""

from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object
from swift.utils import get_logger

from swift_rlx.algorithms.offline import CONSTRAINTS, Verdict, pooled_words, token_counts
from swift_rlx.algorithms.offline.constraint_settings import constraint_plan
from swift_rlx.rewards.combination import Combination
from swift_rlx.trainers.stored_constraints import StoredConstraints, StoredTexts
from swift_rlx.trainers.stored_rows import sampled_ids

logger = get_logger()


class ConstrainedRunMixin:
    """For a trainer with OfflineRunMixin; to stand before it. Without the flag it does nothing."""

    constraints: StoredConstraints | None = None
    _passes_nC: torch.Tensor
    """Of this rank's rows of the generation batch."""
    _verdict: Verdict
    """Of the rows of all ranks."""

    def check_and_tell(self) -> None:
        super().check_and_tell()
        plan = constraint_plan(self.args.constraint_filter, self.args.constraint_settings)
        if plan is None:
            return
        tokenizer = self.template.tokenizer
        texts = StoredTexts(
            lambda group_id: self._group_of(group_id),
            lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
            self.accelerator.unwrap_model(self.model).get_input_embeddings().num_embeddings,
        )
        self.constraints = StoredConstraints(plan, self.train_dataset, texts, self.args.seed)
        self._pooled_V = torch.zeros(texts.vocabulary, dtype=torch.float64)
        own = self.constraints.own
        shares = ", ".join(f"{name} {share:.1%}" for name, share in self._shares(own).items())
        logger.info(
            f"swift-rlx: --constraint_filter {self.args.constraint_filter}: of {len(own.kept_B)} completions of the"
            f" store {own.kept_B.double().mean().item():.1%} pass ({shares})"
        )

    @property
    def _constrains(self) -> bool:
        return self.constraints is not None and self.model.training

    def _shares(self, verdict: Verdict) -> dict[str, float]:
        """Share that passes, by constraint in use."""
        shares = zip(CONSTRAINTS, verdict.passes_BC.double().mean(0).tolist(), strict=True)
        return {name: share for name, share in shares if name in self.constraints.plan.constraints}

    # --- judging a generation batch --------------------------------------------------------------------------------

    def _rollout_samples(self, inputs: Any) -> list[Any]:
        samples: list[Any] = super()._rollout_samples(inputs)
        if self._constrains:
            self._passes_nC = self.constraints.judge(self._places, inputs)
            self._verdict = Verdict(torch.tensor(gather_object(self._passes_nC.tolist()), dtype=torch.bool))
            is_empty_N = torch.tensor(gather_object([place.is_empty for place in self._places]))
            self._record_verdict(Verdict(self._verdict.passes_BC[~is_empty_N]))
            self._record_words()
        return samples

    def _record_verdict(self, judged: Verdict) -> None:
        if not len(judged.passes_BC):
            return
        metrics, penalty = self._metrics["train"], self.constraints.plan.penalty
        for name, share in self._shares(judged).items():
            metrics[f"constraints/{name}_passed"].append(share)
        if penalty is None:
            metrics["constraints/rejected"].append((~judged.kept_B).double().mean().item())
        else:
            metrics["constraints/penalty"].append(judged.penalties(penalty).mean().item())

    def _record_words(self) -> None:
        """Words of what trains, pooled over batches until there are enough of them to say something."""
        rejects = self.constraints.plan.penalty is None
        kept_n = self._passes_nC.all(1) if rejects else torch.ones(len(self._places), dtype=torch.bool)
        counts_V = torch.zeros(len(self._pooled_V))
        for place, is_kept in zip(self._places, kept_n.tolist(), strict=True):
            if is_kept and not place.is_empty:
                ids = torch.from_numpy(sampled_ids(place.member).astype("int64"))
                counts_V += token_counts(ids, len(counts_V)).float()
        self._pooled_V += self.accelerator.reduce(counts_V.to(self.accelerator.device), "sum").cpu()
        if self._pooled_V.sum() == 0:
            return
        found = pooled_words(self._pooled_V, self.constraints.reference)
        if found.passes is not None:
            self._metrics["train"]["constraints/pooled_bits"].append(found.divergence)
            self._pooled_V.zero_()

    # --- what it changes -------------------------------------------------------------------------------------------

    def combine(self, rewards_BF: torch.Tensor, group_ids_B: torch.Tensor, *, update: bool) -> Combination:
        combined: Combination = super().combine(rewards_BF, group_ids_B, update=update)
        if not self._constrains or (penalty := self.constraints.plan.penalty) is None:
            return combined
        lost_B = self._verdict.penalties(penalty).to(combined.rewards_B.dtype)
        return replace(combined, rewards_B=(combined.rewards_B - lost_B).where(combined.valid_B, 0.0))

    def _attach(
        self,
        encoded_inputs: list[dict[str, Any]],
        batches: list[Any],
        advantages_nT: torch.Tensor,
        loss_mask_nT: torch.Tensor,
    ) -> None:
        super()._attach(encoded_inputs, batches, advantages_nT, loss_mask_nT)  # sets the denominators
        if not self._constrains or self.constraints.plan.penalty is not None:
            return
        sizes = [len(encoded["grpo_batch"].loss_mask) for encoded in encoded_inputs]
        for encoded, kept_B in zip(encoded_inputs, self._passes_nC.all(1).split(sizes), strict=True):
            batch = encoded["grpo_batch"]
            batch.loss_mask = batch.loss_mask & kept_B.to(batch.loss_mask.device)[:, None]
