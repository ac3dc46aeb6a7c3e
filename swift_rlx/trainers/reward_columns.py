"""The reward functions of a run: resolved by name, checked at every call, and their columns in the reward matrix."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from swift_rlx.integration.reward_names import Checked, build_rewards
from swift_rlx.rewards import AsyncCheckedReward, combine_rewards


class RewardColumnsMixin:
    """Puts a checked reward in the place of each reward function and calls the columns by the names the user gave."""

    def _prepare_rewards(
        self, reward_funcs: Any, reward_model: Any = None, reward_templates: Any = None
    ) -> None:
        given = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        checked = build_rewards([reward for reward in given if reward is not None], self.args)
        super()._prepare_rewards(list(checked), reward_model, reward_templates)
        self.reward_func_names[: len(checked)] = [reward.name for reward in checked]
        self.checked_rewards: list[Checked] = checked

    def _compute_rewards_per_func(self, samples: list[Any]) -> torch.Tensor:
        scores = self.score_outside_running_loop(samples)
        self.record_failures()
        return scores

    def record_failures(self, elsewhere: "Counter[str] | None" = None) -> None:
        """Put the rows that rewards failed on since the last call into the log; `elsewhere`: beside this thread."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for reward in self.checked_rewards:
            failed = reward.take_counters().failed + (elsewhere or {}).get(reward.name, 0)
            metrics[f"reward/{reward.name}/failures"].append(float(failed))

    def score_outside_running_loop(self, samples: list[Any]) -> torch.Tensor:
        """ms-swift runs async rewards with `asyncio.run`, which a notebook's running loop refuses."""
        score = super()._compute_rewards_per_func
        has_async = any(isinstance(reward, AsyncCheckedReward) for reward in self.checked_rewards)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return score(samples)
        if not has_async:  # stay on this thread: verifiers that set SIGALRM need the main one
            return score(samples)
        with ThreadPoolExecutor(1, "rewards") as pool:
            return pool.submit(score, samples).result()

    def compute_std(self, samples: list[Any], rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Spread of each row's group, [N], for `--dynamic_sample`: unscored rows count for nothing, not as 0."""
        combined = combine_rewards(rewards_per_func, self.reward_weights)
        size = self.num_generations
        rewards, valid = combined.rewards_B.view(-1, size), combined.valid_B.view(-1, size)
        count = valid.sum(1).clamp(min=1)
        mean = rewards.where(valid, 0.0).sum(1) / count
        deviation = (rewards - mean[:, None]).where(valid, 0.0)
        return (deviation.square().sum(1) / count).sqrt().repeat_interleave(size)
