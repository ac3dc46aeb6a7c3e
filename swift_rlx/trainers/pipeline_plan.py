"""What the pipeline is made of, decided from the trainer's arguments, the same on every rank."""

import os
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from swift.utils import get_logger

from swift_rlx.backends import Backend, WeightFiles, WeightKind, WeightUpdate
from swift_rlx.cluster.weight_directory import WeightDirectory, needed_bytes
from swift_rlx.errors import ConfigError
from swift_rlx.scheduler import RolloutConfig, StaleTokens, TrainOrder
from swift_rlx.scheduler.journal import Journal
from swift_rlx.trainers.beside_models import rewards_beside
from swift_rlx.trainers.conversations import ConversationBackend
from swift_rlx.trainers.crew import ProcessCrew
from swift_rlx.trainers.engine_specs import choose_backend, engine_specs
from swift_rlx.trainers.epoch_order import EpochPrompts, batches_before, epoch_order, fresh_batches
from swift_rlx.trainers.group_scoring import GroupScorer, is_of_groups
from swift_rlx.trainers.journal_place import journal_directory
from swift_rlx.trainers.pipeline import PipelinePlan, RolloutPipeline, worker_environment
from swift_rlx.trainers.prompt_encoding import PromptEncoder
from swift_rlx.trainers.reward_crew import RunReward
from swift_rlx.trainers.server_plan import server_crew, shared_directory
from swift_rlx.trainers.spread_filter import SpreadFilter
from swift_rlx.types import SamplingParams

logger = get_logger()
WARM_UP_S = 600.0
STALL_S, STALL_SHARE = 45.0, 0.15
"""How long workers may be without a word: so many seconds or, where that is more, this share of --rollout_timeout_s."""
SCORE_LIMIT_S, SCORE_LIMITS = 300.0, 10.0
"""How long the scoring of a group may take: so many seconds or, where that is more, times --reward_timeout_s."""


def rollout_config(trainer: Any, sampling: SamplingParams) -> RolloutConfig:
    """The scheduler's settings, in its own units."""
    args = trainer.args
    per_generation = args.steps_per_generation * trainer.num_iterations
    order = epoch_order(trainer)
    now, end = trainer.state.global_step, trainer.state.max_steps
    picked_before = partial(batches_before, trainer)
    fresh = fresh_batches(args.offline_ratio, picked_before) if args.offline_ratio else None
    stall_s = max(STALL_S, STALL_SHARE * args.rollout_timeout_s)
    return RolloutConfig(
        batch_groups=order.batch_prompts,
        group_size=trainer.num_generations,
        min_members=trainer.min_group_size,
        max_staleness=args.max_staleness,
        steps_per_batch=max(1, per_generation // args.gradient_accumulation_steps),
        batches_per_step=-(-args.gradient_accumulation_steps // per_generation),
        fresh_batches=fresh,
        max_batches=picked_before(end) - picked_before(now)
        if fresh is None
        else sum(map(fresh, range(now, end))),
        max_inflight=args.rollout_max_inflight or args.rlx_engine_options.get("max_num_seqs"),
        target_latency_s=args.rollout_target_latency_s,
        weight_update=None if args.weight_update == "auto" else WeightUpdate(args.weight_update),
        train_order=TrainOrder(args.train_order),
        stale_tokens=StaleTokens(args.stale_tokens),
        request_timeout_s=args.rollout_timeout_s,
        retries=args.rollout_retries,
        warm_up_limit_s=WARM_UP_S,
        score_limit_s=max(SCORE_LIMIT_S, SCORE_LIMITS * args.reward_timeout_s),
        first_token_limit_s=stall_s,
        token_gap_limit_s=stall_s,
        sampling=sampling,
        seed=args.seed,
    )


def start_pipeline(trainer: Any) -> None:
    """On all ranks: export the first weights; on rank 0: start workers on them, and the scheduler."""
    share_cores(trainer)
    args, is_main = trainer.args, trainer.accelerator.is_main_process
    rewards = rewards_beside(trainer) if is_main else []
    warm_up = trainer.reward_crew.submit_warm_up() if is_main else None
    if trainer.is_multimodal:  # a template that cannot be used is refused before anything is started
        trainer.encoder.prompt(dict(trainer.train_dataset[0]), 0, 0)
    config = rollout_config(trainer, trainer.encoder.sampling())
    crew = server_crew(trainer, config) if args.rollout_endpoints else _process_crew(trainer, config)
    trainer.policy_version = trainer.version_of_start()
    trainer.weight_directory = _weight_directory(trainer) if is_main else None
    first = trainer.export_weights(trainer.policy_version)
    if is_main:
        plan = PipelinePlan(
            config=config,
            crew=crew,
            version=trainer.policy_version,
            columns=tuple(trainer.reward_keys),
            run_directory=run_directory(trainer),
        )
        warm_up.result()
        trainer.pipeline = _pipeline(trainer, plan, first, rewards)
    trainer.rollout_state = None  # its answers go as they are trained


def _process_crew(trainer: Any, config: RolloutConfig) -> ProcessCrew:
    """Processes of ours, and the way in which weights reach them; on all ranks."""
    has_accelerator = trainer.accelerator.device.type != "cpu"
    name = choose_backend(trainer.args.rollout_backend, trainer.is_multimodal, has_accelerator)
    specs = engine_specs(trainer, name, config)
    trainer.prepare_export(name, specs[0].max_adapter_rank)
    if trainer.exporter.kind is WeightKind.FULL:  # vLLM with room for adapters takes no others beside answers
        specs = tuple(replace(spec, max_adapter_rank=0) for spec in specs)
    return ProcessCrew(
        specs,
        tuple(worker_environment(spec) for spec in specs),
        run_directory(trainer),
        start_limit_s=trainer.args.rollout_start_timeout_s,
        stall_limit_s=config.first_token_limit_s,
    )


def _pipeline(
    trainer: Any, plan: PipelinePlan, first: WeightFiles, rewards: Sequence[RunReward | None]
) -> RolloutPipeline:
    state, dataset = trainer.rollout_state, trainer.train_dataset
    encoder = PromptEncoder(trainer.template, trainer.sample_cls, trainer.request_config)
    spread = spread_filter(trainer, rewards)
    scorer = GroupScorer(rewards, encoder, trainer.state, spread, trainer.use_gym_env, trainer.version_watch)
    monitor = trainer.start_monitor(plan.run_directory, plan.crew.size, plan.config.max_inflight)
    scorer.on_scored = monitor.scored
    if state is not None:
        scorer.go_on_from(one.ready for one in state.open if one.ready is not None)

    def encode(row: int, epoch: int) -> Any:
        return encoder.prompt(dict(dataset[row]), row, epoch)

    return RolloutPipeline(
        plan,
        trainer.weight_directory,
        first,
        EpochPrompts(epoch_order(trainer), encode, 0 if state is None else state.admitted),
        scorer,
        monitor,
        Journal(
            journal_directory(trainer.args.output_dir), plan.version.incarnation, trainer.journal_segment
        ),
        state,
        encode,
        conversing(trainer, encoder),
    )


def spread_filter(trainer: Any, rewards: Sequence[RunReward | None]) -> SpreadFilter | None:
    """What `--dynamic_sample` turns away. Raises ConfigError where rewards come in too late to tell."""
    if not trainer.dynamic_sample:
        return None
    late = [
        name for name, reward in zip(trainer.reward_keys, rewards, strict=False) if not is_of_groups(reward)
    ]
    if late or trainer.use_gym_env:
        raise ConfigError(
            f"--dynamic_sample true cannot be used in the pipeline with {', '.join(late) or 'an environment'}, whose"
            " reward is only there when a batch is picked up; drop it, or use --async_rollout false"
        )
    return SpreadFilter(
        trainer.reward_combiner, trainer.max_resample_times * epoch_order(trainer).batch_prompts
    )


def conversing(trainer: Any, encoder: PromptEncoder) -> Callable[[Backend], Backend]:
    """What makes conversations of a worker's answers, with `--multi_turn_scheduler`."""
    if trainer.multi_turn_scheduler is None:
        return lambda backend: backend
    is_total = trainer.args.completion_length_limit_scope == "total"

    def converse(backend: Backend) -> Backend:
        return ConversationBackend(backend, copy(trainer.multi_turn_scheduler), encoder, is_total)

    return converse


def run_directory(trainer: Any) -> Path:
    """Where the pipeline writes what a user may want to read; made here."""
    path = Path(trainer.args.output_dir) / "rlx"
    path.mkdir(parents=True, exist_ok=True)
    return path


def share_cores(trainer: Any) -> None:
    """On a machine without accelerators ranks and workers share the cores: as many threads as each one's share."""
    if trainer.accelerator.device.type != "cpu":
        return
    workers = 0 if trainer.args.rollout_endpoints else trainer.args.rollout_workers
    processes = workers + int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    if threads < torch.get_num_threads():
        torch.set_num_threads(threads)
        logger.info(f"{processes} processes train and generate on these cores: {threads} thread(s) each")


def _weight_directory(trainer: Any) -> WeightDirectory:
    needed = needed_bytes(
        trainer.exporter.bytes_needed(), trainer.args.rollout_workers, trainer.exporter.kind
    )
    if trainer.args.rollout_endpoints and (shared := shared_directory(trainer, run_directory(trainer))):
        return WeightDirectory(shared, needed_bytes=needed, shared_memory=shared)
    return WeightDirectory(run_directory(trainer), needed_bytes=needed)
