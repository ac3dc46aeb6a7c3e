"""Stored batches in the training of a run with fresh ones, and fresh ones into the store.

All ranks train the same batch, which rank 0 picked; rank 0 alone reads and writes the store (`hybrid_run.py`).

A stored generation batch is trained as a fresh one is: the loss of the run's own type, with the importance weights that
the stored log-probs give. A batch that fills a wait joins the optimizer step instead (`fill_training.py`).
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from swift.utils import get_logger

from swift_rlx.errors import ConfigError
from swift_rlx.monitors import COLUMNS
from swift_rlx.rewards.combination import Combination
from swift_rlx.store import BatchRules, GroupFilter
from swift_rlx.trainers.crew import ProcessCrew
from swift_rlx.trainers.epoch_order import batches_before
from swift_rlx.trainers.fill_training import FillTrainingMixin, fill_groups
from swift_rlx.trainers.fresh_scores import FreshScoresMixin
from swift_rlx.trainers.hybrid_run import HybridPlan, HybridRun, Restart
from swift_rlx.trainers.prompt_encoding import PromptEncoder, conversation_output
from swift_rlx.trainers.rollout_rows import Origin, encode_batch
from swift_rlx.trainers.store_sealing import RunFacts
from swift_rlx.trainers.stored_prompts import encoding_of
from swift_rlx.types import TrajectoryGroup

logger = get_logger()
STORE_FOLDER = "store"
"""Beside state.json in a checkpoint."""
SHOWN_APART = ("reward", "reward_std", "completions/mean_length", "rollout/rows_unusable")
"""Metrics of a stored batch, logged as stored/<the last part of the name>."""


class StoredTrainingMixin(FillTrainingMixin, FreshScoresMixin):
    """For a trainer with the pipeline; to stand before MonitoringMixin and AsyncRolloutMixin."""

    _store_folder: Path | None = None
    """Of the checkpoint that the run goes on from."""

    # --- start, checkpoints, end -----------------------------------------------------------------------------------

    def _start_pipeline(self) -> None:
        if self.args.trajectory_store and self.args.offline_ratio < 1 and self.accelerator.is_main_process:
            self.hybrid = self._open_store()
        super()._start_pipeline()
        if self.hybrid is not None:
            self.hybrid.begin_sealing(self._run_facts())

    def _open_store(self) -> HybridRun:
        """Before the workers are started: what is wrong with it ends the run at once."""
        if self.is_multimodal:
            raise ConfigError(
                f"--trajectory_store {self.args.trajectory_store} cannot be used with a multimodal model: a store keeps"
                " prompts of text only"
            )
        state, restart = self.rollout_state, None
        if self._store_folder is not None and state is not None:
            replayed = sum(bool(picked.orders) for picked in state.replay)
            restart = Restart(self._store_folder, replayed, state.incarnation + 1)
        return HybridRun(hybrid_plan(self), self._recipe(), restart)

    def _run_facts(self) -> RunFacts:
        plan = self.pipeline.plan
        encoder = PromptEncoder(
            self.template, self.sample_cls, self.request_config
        )  # of the thread that seals

        def text_of(group: TrajectoryGroup, place: int) -> str:
            completion = group.members[place].completion
            if turns := completion.info.get("turns"):
                output = conversation_output(turns, completion.finish_reason.value)
                return output.response.choices[0].message.content
            return encoder.template.decode_generate_ids(completion.token_ids.tolist())

        engine = plan.crew.specs[0].name if isinstance(plan.crew, ProcessCrew) else "remote"
        return RunFacts(plan.config.sampling, engine, text_of, self.pipeline.journal.flush)

    def _end_pipeline(self) -> None:
        hybrid, self.hybrid = self.hybrid, None
        try:
            if hybrid is not None:
                hybrid.close()  # while the journal is open
        finally:
            super()._end_pipeline()
        if hybrid is not None:
            logger.info(hybrid.summary())

    def _save_state(self, folder: str) -> None:
        if self.hybrid is not None:
            self.hybrid.save(Path(folder, STORE_FOLDER))
        super()._save_state(folder)

    def _load_state(self, folder: str) -> None:
        super()._load_state(folder)
        self._store_folder = Path(folder, STORE_FOLDER)

    def _order(self) -> dict[str, Any]:
        return super()._order() | {"offline_ratio": self.args.offline_ratio or 0.0}

    # --- what trains next ------------------------------------------------------------------------------------------

    def _pick_up(self) -> bytes:
        if self.hybrid is None:
            return super()._pick_up()
        step = self.state.global_step
        if self.hybrid.decide(step, self.pipeline.thread.allow_batch) is Origin.STORED:
            return self._stored(step, Origin.STORED)
        batch, picked = self.pipeline.pick_up(self.hybrid.ask(step))
        if picked is None:
            return self._stored(step, Origin.FILL)
        self.hybrid.came()
        self._fresh = batch
        self.record_batch(batch, self.pipeline.plan.config.batch_groups, self.num_generations)
        return encode_batch(picked)

    def _stored(self, step: int, origin: Origin) -> bytes:
        picked = self.hybrid.take(step, origin)
        self._columns = [dict.fromkeys(COLUMNS)] * len(picked.rows)
        return encode_batch(picked)

    def _rollout_samples(self, inputs: Any) -> list[Any]:
        samples = super()._rollout_samples(inputs)
        while self._takes_from_pipeline and self._picked.origin is Origin.FILL:
            self._train_fill(samples)
            samples = super()._rollout_samples(inputs)
        return samples

    @property
    def _is_stored(self) -> bool:
        return (
            self._takes_from_pipeline and self._picked is not None and self._picked.origin is not Origin.FRESH
        )

    # --- rewards and metrics of a stored batch ---------------------------------------------------------------------

    def _score_completions(self, samples: list[Any]) -> list[Any]:
        if not self._is_stored:
            return super()._score_completions(samples)
        none = torch.nan
        values = [[none if one is None else one for one in row.rewards] for row in self._picked.rows]
        self._rewards_per_func = torch.tensor(values, dtype=torch.float32, device=self.accelerator.device)
        return samples

    def combined_rewards(self, usable_N: torch.Tensor, group_ids_N: torch.Tensor) -> Combination:
        if self._is_stored:
            rewards = [math.nan if row.reward is None else row.reward for row in self._picked.rows]
            rewards_N = torch.tensor(rewards, dtype=self._rewards_per_func.dtype)
            valid_N = usable_N & ~rewards_N.isnan()
            return Combination(rewards_N.where(valid_N, 0.0), valid_N, {}, math.nan)
        combined = super().combined_rewards(usable_N, group_ids_N)
        if self._fresh is not None and self.model.training:
            self._seal(combined, usable_N)
        return combined

    def _prepare_batch_inputs(self, samples: list[Any]) -> list[dict[str, Any]]:
        with self._metrics_apart():
            return super()._prepare_batch_inputs(samples)

    def _postprocess_batch(self, samples: list[Any], batch_encoded_inputs: list[dict[str, Any]]) -> None:
        with self._metrics_apart():
            super()._postprocess_batch(samples, batch_encoded_inputs)

    @contextmanager
    def _metrics_apart(self) -> Iterator[None]:
        """What is recorded of a stored batch is not mixed with what is recorded of fresh ones."""
        if not self._is_stored:
            yield
            return
        metrics, self._metrics["train"] = self._metrics["train"], defaultdict(list)
        try:
            yield
        finally:
            found, self._metrics["train"] = self._metrics["train"], metrics
        for name in SHOWN_APART:
            if name in found:
                metrics[f"stored/{name.rpartition('/')[2]}"].extend(found[name])
        for name in found:
            if name.startswith("offpolicy/"):
                metrics[name].extend(found[name])

    def behavior_fields(self, index: int) -> dict[str, Any]:
        return super().behavior_fields(index) | {"is_stored": self._is_stored}

    def refresh_rollouts(self) -> None:
        if not self._is_stored:  # the answers that wait are not those that the gate found too far off
            super().refresh_rollouts()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.hybrid is not None and "loss" in logs:
            logs.update(self._store_metrics())
        super().log(logs, *args, **kwargs)

    def _store_metrics(self) -> dict[str, float]:
        state = self.hybrid.schedule.state
        statistics = self.pipeline.thread.statistics()
        return {
            "store/tokens_generated": float(sum(statistics.tokens.values())),
            "store/fresh_batches": float(state.fresh),
            "store/stored_batches": float(state.stored),
            "store/lacking_batches": float(state.lacking),
            "store/fills": float(self.hybrid.fills),
            "store/groups_ready": float(self.hybrid.num_ready(self.state.global_step)),
            "store/reuse": self.hybrid.uses_of_last,
        }


def hybrid_plan(trainer: Any) -> HybridPlan:
    """What the flags say, in groups."""
    args, size = trainer.args, trainer.num_generations
    wanted = GroupFilter(
        min_members=trainer.min_group_size,
        min_spread=args.min_store_spread,
        min_best=args.min_store_reward,
        max_age=args.max_store_age,
    )
    groups = args.generation_batch_size // size
    return HybridPlan(
        directory=args.trajectory_store,
        ratio=args.offline_ratio or 0.0,
        groups=groups,
        fill_groups=fill_groups(groups, size, trainer.accelerator.num_processes),
        group_size=size,
        rules=BatchRules(groups, args.max_reuse, args.seed, wanted),
        fills=args.fill_the_wait,
        columns=tuple(trainer.reward_keys),
        batches_before=batches_before(trainer, trainer.state.global_step),
        vocabulary=trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().num_embeddings,
        encode=encoding_of(trainer),
    )
