"""A run on stored groups alone: batches and rewards come from the store, nothing is generated and nothing is scored.

ms-swift's own sampler goes over the groups, so that epochs, shuffling and a resume are those of any data set. Each rank
reads its rows of the memory-mapped store by itself.
"""

from collections import Counter
from functools import lru_cache
from typing import Any

import torch
from accelerate.utils import gather_object
from swift.utils import get_logger

from swift_rlx.algorithms.offline.objective_settings import objective_with
from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.integration.offline_plan import POLICY_GRADIENT, open_groups
from swift_rlx.integration.stored_dataset import GROUP
from swift_rlx.rewards.combination import Combination
from swift_rlx.store.stored_group import as_row_id
from swift_rlx.store.trainable import SourceScores, TrainableGroups
from swift_rlx.trainers import startup
from swift_rlx.trainers.row_alignment import AlignedRows, align
from swift_rlx.trainers.start_logprobs import add_missing_logprobs
from swift_rlx.trainers.stored_rows import (
    Place,
    encoded_as_stored,
    places_of,
    reward_of,
    row_of,
    sample_of,
)

logger = get_logger()
REWARD = "stored"
"""The name of the store's rewards in the log."""


def stored(completions: list[str], **columns: Any) -> list[float]:
    """Stands for the rewards of the store, which belong to its own completions."""
    raise RewardError(
        "the rewards of a store cannot score new completions; give --reward_funcs for an evaluation"
    )


class OfflineRunMixin:
    """For an RLXTrainer whose `args.rlx_offline` says what trains."""

    groups: TrainableGroups

    def __init__(
        self,
        model: Any,
        *,
        args: Any,
        template: Any,
        train_dataset: Any,
        reward_funcs: Any = None,
        **kwargs: Any,
    ) -> None:
        if template.model_meta.is_multimodal:
            raise ConfigError(
                f"--dataset {args.rlx_offline['store']} is refused with a multimodal model: stored groups have token"
                " ids, and no images"
            )
        self.plan = args.rlx_offline
        self._open(args)
        self.groups.snapshot.check_vocabulary(model.get_input_embeddings().num_embeddings)
        self._seen: Counter[str] = Counter()
        self._places: list[Place] = []
        self._aligned_rows: AlignedRows | None = None
        super().__init__(
            model,
            args=args,
            template=template,
            train_dataset=train_dataset,
            reward_funcs=reward_funcs or ([] if kwargs.get("reward_model") else [stored]),
            **kwargs,
        )
        if self.plan["objective"] not in POLICY_GRADIENT:
            self.objective_name = self.plan["objective"]
            self.objective = objective_with(self.objective_name, self.plan["settings"], self.plan["beta"])
            self.beta = 0.0  # its KL is its own; ms-swift computes no log-probs of a reference
        self._check_ranks()

    def _open(self, args: Any) -> None:
        plan = self.plan
        self.groups = open_groups(plan["store"], plan["recipe"], plan["sealed"], args, plan["min_size"])
        self._scores = SourceScores(self.groups.snapshot, plan["recipe"])
        self._group_of = lru_cache(maxsize=args.generation_batch_size)(self.groups.group)

    def trained_rewards(self) -> list[str]:
        """None: those of the store train, which the plan names, and `--reward_funcs` are for an evaluation."""
        return []

    def _check_ranks(self) -> None:
        digests = gather_object([self.groups.digest])
        if len(set(digests)) > 1:
            raise ConfigError(
                f"the store {self.plan['store']} changed while the ranks opened it, and they see other groups; start"
                " again"
            )

    def fitted(self, dataset: Any, template: Any, model: Any, args: Any) -> Any:
        """All rows: completions that do not fit into the model's window do not train, and are counted."""
        window = model.model_info.max_model_len
        limits = [limit for limit in (window, template.max_length) if limit]
        self.max_tokens: int | None = min(limits) if limits else None
        answers, prompts = self.groups.lengths()
        too_long = 0 if self.max_tokens is None else int((answers + prompts > self.max_tokens).sum())
        if too_long == len(answers):
            raise ConfigError(
                f"none of the {len(answers)} stored completions fits into {self.max_tokens} tokens with its prompt; use"
                " a model with a larger window, or a higher --max_length"
            )
        if too_long:
            logger.warning(
                f"{too_long} of {len(answers)} stored completions are longer than {self.max_tokens} tokens with their"
                " prompts, the model's window or --max_length, and do not train"
            )
        return dataset

    def check_and_tell(self) -> None:
        if self.eval_dataset is not None:
            startup.check_columns(self.eval_dataset, self.checked_rewards)
        by = self.groups.logprobs_by()
        if by and self.plan["objective"] == "rloo_is":
            logger.warning(
                f"some log-probs of the store were computed afterwards, by {', '.join(sorted(by))}: importance weights"
                " take that for the policy that sampled; --offline_objective awac needs none"
            )
        rows, size = self.args.generation_batch_size, self.num_generations
        batches = len(self.train_dataset) * size // rows
        logger.info(
            f"swift-rlx: {len(self.train_dataset)} stored groups in {size} places each; a generation batch is"
            f" {rows // size} groups, an epoch {batches} of them, nothing is generated;"
            f" {len(self.train_dataset) - batches * rows // size} groups of the last incomplete batch are left out of"
            " each epoch"
        )

    # --- batches -------------------------------------------------------------------------------------------------

    def _rollout_samples(self, inputs: Any) -> list[Any]:
        if not self.model.training:
            return super()._rollout_samples(inputs)
        if self.plan["objective"] == "rloo_is" and not self._seen:
            self._complete_logprobs()
        first, size = self.accelerator.process_index * len(inputs), self.num_generations
        self._places = [
            self._places_of(as_row_id(row[GROUP]))[(first + at) % size] for at, row in enumerate(inputs)
        ]
        self._note_places()
        return [sample_of(place, row["messages"]) for place, row in zip(self._places, inputs, strict=True)]

    def _places_of(self, group_id: int) -> list[Place]:
        return places_of(
            self._group_of(group_id),
            self.num_generations,
            epoch=int(self.state.epoch or 0),
            seed=self.args.seed,
            group_id=group_id,
            max_tokens=self.max_tokens,
        )

    def _complete_logprobs(self) -> None:
        """Before the first batch of this start of the run."""
        if add_missing_logprobs(self, self.groups):
            self._open(self.args)

    def _note_places(self) -> None:
        kept = [place for place in self._places if not place.is_empty]
        self._seen["completions"] += len(kept)
        self._seen["tokens"] += sum(place.member.completion.num_sampled for place in kept)
        self._seen["places"] += len(self._places)
        self._metrics["train"]["store/empty_places"].append(1 - len(kept) / max(len(self._places), 1))

    def _score_completions(self, samples: list[Any]) -> list[Any]:
        if not self.model.training:
            return super()._score_completions(samples)
        rewards = torch.tensor(
            [[reward_of(place)] for place in self._places],
            dtype=torch.float32,
            device=self.accelerator.device,
        )
        self._rewards_per_func = self.accelerator.gather(rewards)
        return samples

    def source_scores(self) -> torch.Tensor:
        empty = [float("nan")] * self._scores.num_sources
        rows = [
            empty if place.is_empty else self._scores.of(reward_of(place), place.member.score.breakdown)
            for place in self._places
        ]
        return torch.tensor(gather_object(rows), dtype=torch.float64)

    def _prepare_batch_inputs(self, samples: list[Any]) -> list[dict[str, Any]]:
        if not self.model.training:
            return super()._prepare_batch_inputs(samples)
        with encoded_as_stored(self.template):
            encoded = super()._prepare_batch_inputs(samples)
        masks = [entry["grpo_batch"].completion_mask for entry in encoded]
        self._aligned_rows = align([row_of(place) for place in self._places], masks)
        return encoded

    def _postprocess_batch(self, samples: list[Any], batch_encoded_inputs: list[dict[str, Any]]) -> None:
        names = self.reward_func_names
        if self.model.training:
            self.reward_func_names = [REWARD]
        try:
            super()._postprocess_batch(samples, batch_encoded_inputs)
        finally:
            others = {REWARD, *names} - {*self.reward_func_names}
            self.reward_func_names = names
        for name in others:  # the columns of the table of completions are of one length
            self._logs["rewards"][name].extend([float("nan")] * len(self._rewards_per_func))

    # --- what the loss needs -------------------------------------------------------------------------------------

    def usable_rows(self, num_rows: int) -> torch.Tensor:
        if not self.model.training:
            return super().usable_rows(num_rows)
        usable_n = torch.tensor([not place.is_empty for place in self._places])
        if self.plan["objective"] == "rloo_is":  # its weights need a log-prob for each token
            usable_n = self._aligned_rows.usable_n
        usable = self.accelerator.gather(usable_n.to(self.accelerator.device)).cpu()
        self._metrics["train"]["rollout/rows_unusable"].append((~usable).float().mean().item())
        return usable

    def behavior_fields(self, index: int) -> dict[str, Any]:
        fields: dict[str, Any] = super().behavior_fields(index)
        if self.model.training and self.plan["objective"] == "rloo_is":
            fields |= self._aligned_rows.of_micro_batch(index, self.accelerator.device) | {"is_stored": True}
        return fields

    def combine(self, rewards_BF: torch.Tensor, group_ids_B: torch.Tensor, *, update: bool) -> Combination:
        if not self.model.training:
            return super().combine(rewards_BF, group_ids_B, update=update)
        rewards_B = rewards_BF.cpu()[:, 0]
        return Combination(rewards_B.nan_to_num(), ~rewards_B.isnan(), {}, float("nan"))

    # --- resume and end ------------------------------------------------------------------------------------------

    def _order(self) -> dict[str, Any]:
        facts = {"groups": self.groups.digest, "recipe": self.plan["recipe"], "sealed": self.plan["sealed"]}
        return super()._order() | {"store": facts}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        result = super().train(*args, **kwargs)
        seen = self._seen_of_all_ranks()
        empty = 1 - seen["completions"] / max(seen["places"], 1)
        logger.info(
            f"swift-rlx: trained on {seen['completions']} stored completions with {seen['tokens']} tokens, each time of"
            f" {self.state.epoch:g} epochs over {len(self.train_dataset)} groups counted, by {self.plan['objective']};"
            f" {empty:.1%} of the places were empty; nothing was generated or scored"
        )
        return result

    def _seen_of_all_ranks(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for one in gather_object([dict(self._seen)]):
            total.update(one)
        return total
