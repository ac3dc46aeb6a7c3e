"""Batches from the asynchronous pipeline in the place of ms-swift's generation, on every rank."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from swift_rlx.backends import WeightFiles
from swift_rlx.errors import ConfigError
from swift_rlx.integration.rollout_fields import ONLY_ASYNC
from swift_rlx.trainers.prompt_encoding import PromptEncoder, barred_tokens
from swift_rlx.trainers.rank_link import RankLink
from swift_rlx.trainers.rollout_resume import RolloutResumeMixin
from swift_rlx.trainers.rollout_rows import PickedBatch, Row, decode_batch, encode_batch, reward_matrix
from swift_rlx.trainers.row_alignment import AlignedRows, AlignmentWatch, align
from swift_rlx.trainers.sampled_tokens import keep_sampled_only
from swift_rlx.trainers.weight_export import WeightExporter
from swift_rlx.types import PolicyVersion

if TYPE_CHECKING:
    from swift_rlx.cluster import WeightDirectory

ROLLOUT_FIELDS = tuple(
    name
    for name in ONLY_ASYNC
    if name not in ("rollout_backend", "rollout_workers", "rollout_max_inflight", "rollout_devices")
)
"""What `enable_async_rollout` takes under the names of the flags."""


class _PublishCallback(TrainerCallback):
    def __init__(self, trainer: "AsyncRolloutMixin") -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < state.max_steps:
            self.trainer.publish_weights()


class AsyncRolloutMixin(RolloutResumeMixin):
    """Training takes its batches from the pipeline; evaluation generates by itself, on the current weights.

    All ranks: weights are gathered after each optimizer step, and a batch is picked up where ms-swift would
    generate. Rank 0 alone: workers, scheduler and scoring, in a thread of their own.
    """

    weight_directory: "WeightDirectory | None" = None
    """On rank 0, while the pipeline runs."""
    _picked: PickedBatch | None = None
    _aligned: AlignedRows | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_PublishCallback(self))

    def prepare_rollout(self) -> None:
        super().prepare_rollout()
        if barred := barred_tokens(self.template):  # where ms-swift generates
            self.model.generation_config.suppress_tokens = list(barred)
        if self.args.async_rollout:  # ms-swift takes an environment's reward from its vLLM engines only
            self.use_gym_env = bool(
                self.args.use_gym_env if self.args.use_gym_env is not None else self.args.gym_env
            )

    def enable_async_rollout(
        self,
        backend: str = "auto",
        num_workers: int = 1,
        max_inflight: int | None = None,
        gpu_memory_utilization: float | None = None,
        max_staleness: int = 2,
        devices: str | None = None,
        endpoints: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        """Do what `--async_rollout true` and its flags do; what is left out gets its default.

        `settings`: further flags by their names, such as `train_order="admission"`. Raises ConfigError once training
        has begun, and for what the flags refuse; then nothing has changed.
        """
        if self._link is not None:
            raise ConfigError(
                "enable_async_rollout was called after training had begun; call it before train()"
            )
        if unknown := sorted(settings.keys() - {*ROLLOUT_FIELDS}):
            raise ConfigError(
                f"enable_async_rollout takes no {', '.join(unknown)}; besides its own parameters it takes"
                f" {', '.join(ROLLOUT_FIELDS)}"
            )
        if not self.args.async_rollout and (self.args.use_gym_env or self.args.gym_env):
            raise ConfigError(
                "enable_async_rollout cannot add the pipeline to a trainer with an environment, whose reward column is"
                " made with the trainer; give RLXConfig async_rollout=True"
            )
        self.args.change_rollout(
            async_rollout=True,
            rollout_backend=backend,
            rollout_workers=num_workers,
            rollout_max_inflight=max_inflight,
            max_staleness=max_staleness,
            rollout_devices=devices,
            rollout_endpoints=list(endpoints) if endpoints else None,
            **settings,
        )
        if gpu_memory_utilization is not None:
            self.args.rlx_engine_options["gpu_memory_utilization"] = gpu_memory_utilization

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            result = super().train(*args, **kwargs)
        except BaseException as error:
            if self._link is not None:
                self._link.fail(error)
            raise
        finally:
            pipeline = self.pipeline
            self._end_pipeline()
        if pipeline is not None:
            pipeline.check()
        return result

    def _end_pipeline(self) -> None:
        pipeline, self.pipeline, self._link = self.pipeline, None, None
        directory, self.weight_directory, self.rollout_state = self.weight_directory, None, None
        try:
            if pipeline is not None:
                pipeline.close()
        finally:
            self.reward_crew.close()
            if directory is not None:
                directory.remove()

    @property
    def _takes_from_pipeline(self) -> bool:
        return bool(self.args.async_rollout) and self.model.training

    # --- weights -------------------------------------------------------------------------------------------------

    def prepare_export(
        self, engine_name: str, max_adapter_rank: int, why_no_adapter: str | None = None
    ) -> None:
        """Decide how weights reach workers of this engine; on all ranks."""
        self.exporter = WeightExporter(
            self, engine_name, max_adapter_rank=max_adapter_rank, why_no_adapter=why_no_adapter
        )

    def export_weights(self, version: PolicyVersion) -> WeightFiles | None:
        """The current weights as files; on all ranks, the record on rank 0."""
        if self.weight_directory is None:
            return self.exporter.export("")
        with self.weight_directory.new(version, self.exporter.kind) as folder:
            files = self.exporter.export(folder)
        return replace(files, directory=str(self.weight_directory.path(version)))

    def publish_weights(self) -> None:
        """Hand the current weights to the workers; on all ranks, after each optimizer step."""
        if self._link is None:
            return
        version = PolicyVersion(self.policy_version.incarnation, self.state.global_step)
        files = self.export_weights(version)
        self.policy_version = version
        if self.pipeline is not None:
            self.pipeline.publish(files)

    # --- batches -------------------------------------------------------------------------------------------------

    def _rollout_samples(self, inputs: Any) -> list[Any]:
        if not self._takes_from_pipeline:
            return super()._rollout_samples(inputs)
        if self._link is None:
            self._start_pipeline()
        message = self._link.share(self._pick_up)
        self._picked = decode_batch(message)
        prompts = self._own_prompts()
        return [self._sample_of(row, columns) for row, columns in zip(self._own_rows(), prompts, strict=True)]

    def _start_pipeline(self) -> None:
        from swift_rlx.trainers.pipeline_plan import start_pipeline  # a synchronous run needs none of it

        self._link = RankLink(self.accelerator.device)
        self._alignment = AlignmentWatch()
        self.encoder = PromptEncoder(self.template, self.sample_cls, self.request_config)
        start_pipeline(self)

    def _pick_up(self) -> bytes:
        batch, picked = self.pipeline.pick_up()
        self.record_batch(batch, self.pipeline.plan.config.batch_groups, self.num_generations)
        return encode_batch(picked)

    def _own_rows(self) -> list[Row]:
        start = self._first_own_row()
        return self._picked.rows[start : start + len(self._picked.rows) // self.accelerator.num_processes]

    def _first_own_row(self) -> int:
        return self.accelerator.process_index * (len(self._picked.rows) // self.accelerator.num_processes)

    def _own_prompts(self) -> list[dict[str, Any]]:
        """Of each own row the columns of its prompt: those that came with the batch, else those of the data set."""
        if not self._picked.prompts:
            return [dict(self.train_dataset[row.index]) for row in self._own_rows()]
        first = self._first_own_row()
        size = len(self._picked.rows) // len(self._picked.prompts)
        return [json.loads(self._picked.prompts[(first + at) // size]) for at in range(len(self._own_rows()))]

    def _sample_of(self, row: Row, columns: dict[str, Any]) -> Any:
        sample = self.encoder.sample(columns)
        sample.prompt_id = f"prompt_{row.epoch}_{row.index}"
        sample.request_id = f"{sample.prompt_id}_{row.member}"
        return self.encoder.answer(
            sample, row.tokens(), row.behavior_logprobs(), row.finish_reason, row.turns
        )

    def _score_completions(self, samples: list[Any]) -> list[Any]:
        if not self._takes_from_pipeline:
            return super()._score_completions(samples)
        scores = torch.tensor(
            reward_matrix(self._picked.rows), dtype=torch.float32, device=self.accelerator.device
        )
        if self._picked.late:
            scores[:, self._picked.late] = self._late_scores(samples, self._picked.late)
        if self.use_gym_env:
            total = torch.tensor([s.rollout_infos["total_reward"] for s in samples], device=scores.device)
            scores[:, -1] = self.accelerator.gather(total.float())
        own = {reward.name: reward.version for reward in self.checked_rewards}
        self.note_versions(own | self._picked.versions)
        self.record_failures(None if self.pipeline is None else self.pipeline.take_counters())
        self._rewards_per_func = scores
        return samples

    def _late_scores(self, samples: list[Any], late: list[int]) -> torch.Tensor:
        """[N, len(late)]: the rewards that need the main thread, the device or the whole batch."""
        gym, self.use_gym_env = self.use_gym_env, False
        funcs, plugins, names = self.reward_funcs, self.reward_model_plugins, self.reward_func_names
        try:
            self.reward_funcs = [funcs[at] for at in late]
            self.reward_model_plugins = [plugins[at] for at in late]
            self.reward_func_names = [names[at] for at in late]
            return self.score_outside_running_loop(samples)
        finally:
            self.reward_funcs, self.reward_model_plugins, self.reward_func_names = funcs, plugins, names
            self.use_gym_env = gym

    # --- what the loss needs -------------------------------------------------------------------------------------

    def _prepare_batch_inputs(self, samples: list[Any]) -> list[dict[str, Any]]:
        encoded = super()._prepare_batch_inputs(samples)
        if self.multi_turn_scheduler is not None:
            keep_sampled_only(samples, encoded, self.template.padding_free)
        self._aligned = None
        if self._takes_from_pipeline:
            masks = [entry["grpo_batch"].completion_mask for entry in encoded]
            self._aligned = align(self._own_rows(), masks)
        return encoded

    def usable_rows(self, num_rows: int) -> torch.Tensor:
        if self._aligned is None or not self.model.training:
            return super().usable_rows(num_rows)
        usable = self.accelerator.gather(self._aligned.usable_n.to(self.accelerator.device)).cpu()
        fillers = torch.tensor([row.is_filler for row in self._picked.rows])
        self._alignment.check(usable, fillers, self._aligned.lengths)
        self._metrics["train"]["rollout/rows_unusable"].append((~usable).float().mean().item())
        return usable

    def fresh_tokens(self, mask_nT: torch.Tensor) -> torch.Tensor:
        if self._aligned is None or not self.model.training:
            return super().fresh_tokens(mask_nT)
        return self._aligned.fresh_nT

    def behavior_fields(self, index: int) -> dict[str, torch.Tensor]:
        if self._aligned is None or not self.model.training:
            return super().behavior_fields(index)
        return self._aligned.of_micro_batch(index, self.accelerator.device)
