"""What a generation batch says about itself in the log.

Training metrics are means over the generation batches since the last log, as in ms-swift. Evaluation metrics are
sums over all evaluated rows, divided once: the last batch may be shorter than the others.
"""

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from accelerate.utils import gather
from swift.utils import get_logger

from swift_rlx.algorithms import Moments
from swift_rlx.errors import RewardError
from swift_rlx.rewards.combination import Combination
from swift_rlx.trainers.batch import RLXBatch, Rollout

logger = get_logger()
WARN_AFTER_BATCHES_WITHOUT_SPREAD = 5
MOST_BATCHES_IN_VAIN = 10


class RolloutMetricsMixin:
    """Records into ms-swift's `_metrics` and `_logs`."""

    def _prepare_metrics(self) -> None:
        super()._prepare_metrics()
        self._eval_sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._batches_without_spread = self._batches_in_vain = 0
        self._was_repeating = False

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _record(self, name: str, values: torch.Tensor) -> None:
        """The mean of `values`; nothing if there are none."""
        if values.numel() == 0:
            return
        if self.model.training:
            self._metrics["train"][name].append(values.double().mean().item())
        else:
            sums = self._eval_sums[name]
            sums[0] += values.double().sum().item()
            sums[1] += values.numel()

    def close_eval_metrics(self) -> None:
        """Hand the evaluation's means to ms-swift's next log line and forget them."""
        for name, (total, count) in self._eval_sums.items():
            self._metrics["eval"][name] = [total / count]
        self._eval_sums.clear()

    def record_rollout(
        self, rollout: Rollout, rewards_per_func: torch.Tensor, advantages_nT: torch.Tensor
    ) -> None:
        """Rewards, spread and validity of a generation batch; the rows of the completions table."""
        valid, rewards_per_func = rollout.valid_N, rewards_per_func.cpu()
        if rollout.is_training and not valid.any():
            is_scored = not rewards_per_func.isnan().all()
            why = (
                "no completion that may train has a reward"
                if is_scored
                else "no reward scored any completion"
            )
            logger.warning(f"{why} of this generation batch: it trains nothing")
        self._record("reward", rollout.rewards_N[valid])
        self._record_spread(rollout)
        for index, name in enumerate(self.reward_func_names):
            column = rewards_per_func[:, index]
            scored = column[~column.isnan() & valid]
            self._record(f"reward/{name}/mean", scored)
            self._metrics[self._mode][f"reward/{name}/std"].append(
                scored.std(correction=0).item() if len(scored) else 0.0
            )
            self._record(f"reward/{name}/none", column.isnan().float())
            if rollout.is_training and self.state.global_step == 0 and len(scored) and not scored.any():
                logger.warning(
                    f"the reward {name} is 0 for every completion of the first generation batch: check that it reads"
                    " what the model writes (a chat template may have opened a tag that it looks for)"
                )
            self._logs["rewards"][name].extend(column.tolist())
        tokens_n = rollout.mask_nT.sum(1).clamp(min=1)
        per_row = (advantages_nT * rollout.mask_nT).sum(1) / tokens_n
        self._logs["advantages"].extend(rollout.gather(per_row).tolist())

    def record_objectives(self, combined: Combination) -> None:
        """What each objective does to the reward, and how far they are from one opinion."""
        metrics = self._metrics[self._mode]
        if len(combined.shares) > 1:
            for name, share in combined.shares.items():
                metrics[f"reward/{name}/share"].append(share)
        if not math.isnan(combined.min_correlation):
            metrics["reward/min_correlation"].append(combined.min_correlation)
        if combined.members is not None:
            told = {"std": combined.members.std, "spearman": combined.members.spearman}
            for name, value in told.items():
                if not math.isnan(value):
                    metrics[f"reward/ensemble/disagreement_{name}"].append(value)

    def _record_spread(self, rollout: Rollout) -> None:
        """Within-group spread: a group of equal rewards has no policy gradient, a group of one no baseline."""
        rewards, valid = rollout.rewards_N.double(), rollout.valid_N
        size = self.num_generations if rollout.is_training else self.num_generations_eval
        rewards, valid = rewards.view(-1, size), valid.view(-1, size)
        count = valid.sum(1)
        mean = rewards.where(valid, 0.0).sum(1) / count.clamp(min=1)
        deviation = (rewards - mean[:, None]).where(valid, 0.0)
        variance = deviation.square().sum(1) / count.clamp(min=1)
        self._record("reward_std", variance[count > 0].sqrt())
        no_spread = (variance < 1e-12) & (count > 1)
        self._record("groups/no_spread", no_spread[count > 1].float())
        self._record("groups/skipped", (count < self.min_group_size).float())
        self._record("rows/unscored", (~valid).float())
        if self.model.training:
            self._warn_without_spread(bool(no_spread[count > 1].all()) and bool((count > 1).any()))

    def _warn_without_spread(self, is_flat: bool) -> None:
        self._batches_without_spread = self._batches_without_spread + 1 if is_flat else 0
        if self._batches_without_spread == WARN_AFTER_BATCHES_WITHOUT_SPREAD:
            logger.warning(
                f"in the last {WARN_AFTER_BATCHES_WITHOUT_SPREAD} generation batches every prompt's completions got"
                " equal rewards: there is nothing to learn from. Use harder or easier prompts, a finer reward, a"
                " higher --temperature or more --num_generations."
            )

    def note_trained(self, trains: bool) -> None:
        """A generation batch of all ranks has tokens to train on, or none. Raises RewardError after too many of these.

        A run that goes on so would end without having learned, and without an error.
        """
        self._batches_in_vain = 0 if trains else self._batches_in_vain + 1
        if self._batches_in_vain == MOST_BATCHES_IN_VAIN:
            raise RewardError(
                f"{MOST_BATCHES_IN_VAIN} generation batches in a row had no token to train on: rewards were None,"
                " --overlong_filter or --ess_gate left every completion out, or all tokens were over --max_staleness"
                " (the warnings above and the log's rows/unscored say which); mend that, or raise"
                " --max_completion_length where completions are cut"
            )

    def warn_of_repeats(self, answers: Sequence[Any], gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Where every prompt's completions are one and the same; once, until a batch is not so.

        answers: this rank's completions, as token ids or messages. `gather`: from all ranks.
        """
        if self.num_generations == 1:
            return
        groups = gather(self.digests(answers)).view(-1, self.num_generations)
        is_repeating = bool((groups == groups[:, :1]).all())
        if is_repeating and not self._was_repeating:
            logger.warning(
                f"all {self.num_generations} completions of each prompt of this generation batch are the same tokens,"
                f" so that there is nothing to compare: --temperature {self.args.temperature:g} is too low, the engine"
                " uses one seed for all, or the policy has only one answer left"
            )
        self._was_repeating = is_repeating

    @staticmethod
    def digests(answers: Sequence[Any]) -> torch.Tensor:
        """[n] integers, the same in every process for the same answer."""
        return torch.tensor([zlib.crc32(msgspec.json.encode(one, enc_hook=repr)) for one in answers])

    def record_moments(self, moments: Moments) -> None:
        """Mean and standard deviation that global normalization took out of the returns."""
        self._metrics[self._mode]["advantages/mean_removed"].append(moments.mean)
        self._metrics[self._mode]["advantages/std_removed"].append(moments.variance**0.5)

    def record_sequence_kl(self, kl: torch.Tensor) -> None:
        """KL from the reference of each valid completion, the token sum of k1."""
        self._record("kl", kl)

    def record_kl(self, share_of_kl: torch.Tensor) -> None:
        """The k2 loss per token: this rank's summand of the optimizer step's mean."""
        self._metrics[self._mode]["kl"].append(self.accelerator.reduce(share_of_kl.double(), "sum").item())

    def record_clipping(self, policy: Any, share: torch.Tensor) -> None:
        """Shares of the step's ratios at which the clip removed the gradient."""
        counts = torch.stack([policy.clipped_low, policy.clipped_high]) * share
        low, high = self.accelerator.reduce(counts.double(), "sum").tolist()
        metrics = self._metrics[self._mode]
        metrics["clip_ratio/low_mean"].append(low)
        metrics["clip_ratio/high_mean"].append(high)
        metrics["clip_ratio/region_mean"].append(low + high)

    def entropy_metrics(self, entropies_BT: torch.Tensor, batch: RLXBatch) -> dict[str, Any]:
        """ms-swift's entropy record: the mean entropy of each completion, over all ranks."""
        mask = batch.completion_mask
        per_row = gather((entropies_BT * mask).sum(1) / mask.sum(1).clamp(min=1))
        return {
            "entropy_logs": per_row.tolist(),
            "entropy_mean": per_row.mean().item(),
            "entropy_max": per_row.max().item(),
            "entropy_min": per_row.min().item(),
        }
