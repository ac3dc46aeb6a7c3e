"""The scores of a fresh batch on their way into the store: raw ones, and what is made of them before the baseline."""

import math

import torch

from swift_rlx.rewards.combination import Combination
from swift_rlx.trainers.hybrid_run import HybridRun
from swift_rlx.trainers.store_sealing import FreshBatch, ScoredMember, recipe_of
from swift_rlx.types import RewardPart, TrainBatch


class FreshScoresMixin:
    """For StoredTrainingMixin: hands each fresh batch to the thread that writes, when it is scored."""

    hybrid: HybridRun | None = None
    """On rank 0, while the pipeline runs, with `--trajectory_store`."""
    _fresh: TrainBatch | None = None
    """On rank 0: the fresh batch that was picked up and is not on its way to the store yet."""

    def _recipe(self) -> str:
        args, names = self.args, self.reward_keys
        versions = {reward.name: reward.version for reward in self.checked_rewards}
        how = [] if args.reward_normalize == "none" else [f"{args.reward_normalize} of the run"]
        how += [] if args.reward_ensemble == "none" else [f"ensemble {args.reward_ensemble}"]
        known = versions | self._model_versions | self.reward_versions
        return recipe_of(names, known, self.reward_weights.tolist(), ", ".join(how))

    def _seal(self, combined: Combination, usable_N: torch.Tensor) -> None:
        """Hand the fresh batch over with its scores: raw ones, and the combined one before clip, KL and baseline."""
        batch, self._fresh = self._fresh, None
        groups = tuple(one.group for one in batch.groups)
        rows = range(0, len(usable_N), self.num_generations)
        members = tuple(
            tuple(
                self._scored_member(place, first + place, combined)
                for place in range(len(group.members))
                if usable_N[first + place]
            )
            for group, first in zip(groups, rows, strict=False)  # fillers stand behind
        )
        self.hybrid.seal(FreshBatch(groups, members, self._recipe()))

    def _scored_member(self, place: int, row: int, combined: Combination) -> ScoredMember:
        reward = combined.rewards_B[row].item() if combined.valid_B[row] else None
        parts = tuple(
            RewardPart(name, None if math.isnan(value) else value, self.reward_versions.get(name, ""))
            for name, value in zip(self.reward_keys, self._rewards_per_func[row].tolist(), strict=True)
        )
        return ScoredMember(place, reward, parts)
