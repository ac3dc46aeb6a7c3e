"""The reward functions of a run: resolved by name, run by their crew, and their columns in the reward matrix."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from accelerate.utils import gather_object
from swift.utils import get_logger

from swift_rlx.errors import RewardError
from swift_rlx.integration.reward_names import described_rewards
from swift_rlx.integration.run_reward_model import AskedModel, version_of_model
from swift_rlx.rewards import OnError, RewardCombiner, RewardCounters
from swift_rlx.rewards.combination import Combination
from swift_rlx.rewards.ensemble import parse_ensemble
from swift_rlx.rewards.normalize import normalizer
from swift_rlx.rewards.version_watch import VersionChange, VersionWatch
from swift_rlx.trainers.reward_crew import BesideReward, RewardCrew
from swift_rlx.trainers.startup import log_reward_models

logger = get_logger()
MAX_SCORINGS = 3
"""Of a batch whose rewards change their version meanwhile."""


class RewardColumnsMixin:
    """Puts a reward of the crew in the place of each reward function, and combines the columns of all sources."""

    def _prepare_rewards(
        self, reward_funcs: Any, reward_model: Any = None, reward_templates: Any = None
    ) -> None:
        given = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        args, models = self.args, list(reward_model or [])
        self.reward_crew = RewardCrew(
            described_rewards([reward for reward in given if reward is not None], args),
            on_error=OnError.parse(args.reward_on_error),
            limit_s=args.reward_timeout_s,
            workers=args.reward_workers,
            devices=args.reward_devices,
        )
        rewards = self.reward_crew.rewards
        super()._prepare_rewards(list(rewards), reward_model, reward_templates)
        plugins = self.reward_model_plugins
        self.reward_model_plugins = [None if one is None else AskedModel(one) for one in plugins]
        self.reward_model_templates = list(reward_templates or [])
        log_reward_models(models, self.reward_model_templates, self.accelerator.device)
        self.reward_func_names[: len(rewards)] = [reward.name for reward in rewards]
        self.checked_rewards = rewards
        self.reward_keys = _told_apart(self.reward_func_names)
        self.reward_combiner = RewardCombiner(
            self.reward_keys,
            self.reward_weights.cpu(),
            normalizer(args.reward_normalize, self.reward_keys),
            parse_ensemble(args.reward_ensemble),
            range(len(rewards), len(rewards) + len(models)),
        )
        self.version_watch = VersionWatch(VersionChange(args.reward_version_change))
        self.reward_versions: dict[str, str] = {}
        """Of the last batch that trained."""
        self._model_versions = {
            key: version_of_model(model)
            for key, model in zip(self.reward_keys[len(rewards) :], models, strict=False)
        }

    # --- scoring without the pipeline ------------------------------------------------------------------------------

    def _compute_rewards_per_func(self, samples: list[Any]) -> torch.Tensor:
        self.reward_crew.watch()
        for _ in range(MAX_SCORINGS):
            before = self._versions_of_all_ranks()
            scores = self.score_outside_running_loop(samples)
            if self._versions_of_all_ranks() == before and all(one == before[0] for one in before):
                break
        else:
            raise RewardError(
                f"the rewards changed their versions during each of {MAX_SCORINGS} scorings of a batch, or differ"
                f" between the ranks, and are {before} now; run one version of each"
            )
        if self.model.training:
            self.note_versions(before[0])
        self.record_failures()
        return scores

    def _versions_of_all_ranks(self) -> list[dict[str, str]]:
        """Ranks are asked only where a version can change while it is used."""
        own = {reward.name: reward.version for reward in self.checked_rewards}
        if not any(reward.reward.is_source for reward in self.checked_rewards):
            return [own]
        every: list[dict[str, str]] = gather_object([own])
        return every

    def record_failures(self, elsewhere: Mapping[str, RewardCounters] | None = None) -> None:
        """Put what happened to the rewards since the last call into the log; `elsewhere`: beside this thread."""
        metrics = self._metrics["train" if self.model.training else "eval"]
        for reward in (*self.checked_rewards, *self.reward_crew.models):
            counters = reward.take_counters()
            counters.add((elsewhere or {}).get(reward.name, RewardCounters()))
            metrics[f"reward/{reward.name}/failures"].append(float(counters.failed))
            metrics[f"reward/{reward.name}/timeouts"].append(float(counters.over_limit))
            metrics[f"reward/{reward.name}/retries"].append(float(counters.retries))
            if reward.spec.cache:
                metrics[f"reward/{reward.name}/cached"].append(float(counters.cached))

    def score_outside_running_loop(self, samples: list[Any]) -> torch.Tensor:
        """ms-swift runs async rewards with `asyncio.run`, which a notebook's running loop refuses."""
        score = super()._compute_rewards_per_func
        has_async = any(isinstance(reward, BesideReward) for reward in self.checked_rewards)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return score(samples)
        if not has_async:  # stay on this thread: verifiers that set SIGALRM need the main one
            return score(samples)
        with ThreadPoolExecutor(1, "rewards") as pool:
            return pool.submit(score, samples).result()

    # --- several sources into one ----------------------------------------------------------------------------------

    def combine(self, rewards_BF: torch.Tensor, group_ids_B: torch.Tensor, *, update: bool) -> Combination:
        """One reward a row; `update`: the rows are trained on."""
        return self.reward_combiner.combine(rewards_BF.cpu(), group_ids_B, update=update)

    def compute_std(self, samples: list[Any], rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Spread of each row's group, [N], for `--dynamic_sample`: unscored rows count for nothing, not as 0."""
        size = self.num_generations
        groups = torch.arange(len(rewards_per_func)) // size
        combined = self.combine(rewards_per_func, groups, update=False)
        rewards, valid = combined.rewards_B.view(-1, size), combined.valid_B.view(-1, size)
        count = valid.sum(1).clamp(min=1)
        mean = rewards.where(valid, 0.0).sum(1) / count
        deviation = (rewards - mean[:, None]).where(valid, 0.0)
        std = (deviation.square().sum(1) / count).sqrt().repeat_interleave(size)
        return std.to(rewards_per_func.device)

    # --- versions --------------------------------------------------------------------------------------------------

    def note_versions(self, versions: Mapping[str, str]) -> None:
        """The batch that trains next was scored by these; on all ranks. Statistics of changed rewards begin anew.

        Raises RewardError where a change ends the run.
        """
        now = {**self._model_versions, **versions}
        for name, version in now.items():
            self.version_watch.see(name, version)
        changed = [
            name for name, version in now.items() if self.reward_versions.get(name, version) != version
        ]
        self.reward_versions.update(now)
        if changed:
            logger.warning(f"statistics of the rewards begin anew: {', '.join(changed)} changed")
            self.reward_combiner.restart(changed)
            self.restart_reward_baseline()

    def restart_reward_baseline(self) -> None:
        """Forget what an algorithm remembers of the level of the rewards; a subclass with such a memory overrides."""

    def reward_state(self) -> dict[str, Any]:
        """For a checkpoint, the same on all ranks."""
        return {"versions": self.reward_versions, "statistics": self.reward_combiner.state()}

    def load_reward_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `reward_state`. Raises RewardError where a reward has changed and that ends the run."""
        self.reward_versions = dict(state["versions"])
        self.reward_combiner.load_state(state["statistics"])
        self.version_watch = VersionWatch(self.version_watch.choice, self.reward_versions)
        for reward in self.checked_rewards:
            if reward.name in self.reward_versions:
                self.version_watch.see(reward.name, reward.version)


def _told_apart(names: list[str]) -> list[str]:
    """Two models may have the same name, that of their folder."""
    return [
        name if names.index(name) == at else f"{name}#{names[:at].count(name) + 1}"
        for at, name in enumerate(names)
    ]
