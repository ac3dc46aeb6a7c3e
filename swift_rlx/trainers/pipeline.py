"""What runs beside the training on rank 0: workers, scheduler, scoring; started once, ended whatever happens."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from swift.utils import get_logger

from swift_rlx.backends import Backend, EngineSpec, WeightFiles, WeightUpdate, resolve_weight_update
from swift_rlx.cluster.weight_directory import WeightDirectory
from swift_rlx.errors import SchedulingError
from swift_rlx.monitors import Monitor, WatchedBackend
from swift_rlx.rewards import RewardCounters
from swift_rlx.scheduler import RolloutConfig, WaitFiller
from swift_rlx.scheduler.journal import Journal
from swift_rlx.scheduler.resume import PromptOf, RolloutState
from swift_rlx.scheduler.threaded import RolloutThread
from swift_rlx.trainers.batch_scoring import BatchScorer
from swift_rlx.trainers.crew import Crew, close_all
from swift_rlx.trainers.epoch_order import EpochPrompts
from swift_rlx.trainers.group_scoring import GroupScorer
from swift_rlx.trainers.rollout_rows import PickedBatch, leave_out, rows_of_batch
from swift_rlx.types import PolicyVersion, TrainBatch

logger = get_logger()


@dataclass(frozen=True)
class PipelinePlan:
    """All that is decided before the start; `columns` are the names of the rewards, in their order."""

    config: RolloutConfig
    crew: Crew
    version: PolicyVersion
    columns: tuple[str, ...]
    run_directory: Path


class RolloutPipeline:
    """Starts the workers on `first` weights and keeps the trainer in batches.

    `state`: of an earlier start of the run, with `prompt_of` (index, epoch) for the prompts in it.
    `monitor`: told what the workers do. `wrap`: put around each of them. `journal`: told what the scheduler does, and
    closed with the pipeline. Raises what a worker failed with.
    """

    weight_update: WeightUpdate
    """What publishing does to answers in flight, once the workers have said what they can."""

    def __init__(
        self,
        plan: PipelinePlan,
        weights: WeightDirectory,
        first: WeightFiles,
        prompts: EpochPrompts,
        scorer: GroupScorer,
        monitor: Monitor,
        journal: Journal,
        state: RolloutState | None = None,
        prompt_of: PromptOf | None = None,
        wrap: Callable[[Backend], Backend] = lambda backend: backend,
    ) -> None:
        self.plan = plan
        self.weights = weights
        self.journal = journal
        self.workers: Sequence[Backend] = ()
        self._scorer = scorer
        self._batch_scorer = BatchScorer(scorer)
        scorer.on_group = self._look_ahead
        self._first = first
        self._wrap = wrap
        self._monitor = monitor
        self._open = ExitStack()
        self._open.callback(self._close_journal)
        self.thread = RolloutThread(
            plan.config,
            self._make_backends,
            prompts,
            scorer,
            version=plan.version,
            payload=first,
            state=state,
            prompt_of=prompt_of,
            journal=journal,
        )
        try:
            self.thread.start()
        except BaseException:
            self.close()
            raise
        self._open.callback(self.thread.close)

    async def _make_backends(self) -> Sequence[Backend]:
        self.workers = await self.plan.crew.start(self.plan.version, self._first)
        try:
            self.weight_update = resolve_weight_update(self.plan.config.weight_update, self.workers)
        except BaseException:
            await close_all(self.workers)
            raise
        # What is watched is what the scheduler sees: with conversations, one answer of all turns.
        return [WatchedBackend(self._wrap(each), self._monitor, time.monotonic) for each in self.workers]

    def take_counters(self) -> dict[str, RewardCounters]:
        """What happened to the rewards since the last call, by their names."""
        return self._scorer.take_counters()

    def refresh(self) -> int:
        """Have what is ready and older than the trainer's weights generated again; returns how many groups."""
        return self.thread.refresh()

    def pick_up(self, filler: WaitFiller | None = None) -> tuple[TrainBatch, PickedBatch | None]:
        """The next batch with the scores that train, and as the ranks get it; waits for it.

        With a `filler` it may be a batch without groups, in whose place a stored one joins the step, and None.
        Raises what the pipeline failed with.
        """
        batch = self.thread.next_batch(filler=filler)
        if batch is None:
            raise SchedulingError("the prompts ended before the training did")
        if not batch.groups:
            return batch, None
        if self._scorer.spread is not None:
            self._scorer.spread.picked_up()
        config = self.plan.config
        one_version = self._scorer.of_one_version(batch)
        scored, versions = self._batch_scorer.scored(one_version.batch)
        if self._scorer.of_batches():
            self._batch_scorer.expect(self.thread.foreseen())
        rows = rows_of_batch(scored, config.batch_groups, config.group_size, self.plan.columns)
        rows = leave_out(rows, one_version.left_out)
        late = sorted(self._scorer.late)
        return scored, PickedBatch(batch.step, batch.waited_s, late, rows, one_version.versions | versions)

    def _look_ahead(self) -> None:
        """In the scheduler's loop, when what is ready has changed."""
        if self._scorer.of_batches():
            self._batch_scorer.expect(self.thread.scheduler.foreseen())

    def publish(self, files: WeightFiles) -> PolicyVersion:
        """Offer the weights after one more optimizer step; returns at once."""
        version = self.thread.publish(files, steps=1)
        self.weights.keep_only(self.thread.needed_versions())
        return version

    def close(self) -> None:
        """End workers, threads and files; may be called twice."""
        self._open.close()
        self.weights.remove()

    def check(self) -> None:
        """After `close`: raise what went wrong at the end, such as a law of the scheduler that was found broken."""
        if self.thread.failure is not None:
            raise self.thread.failure

    def _close_journal(self) -> None:
        self.journal.close()
        cost = self.journal.cost()
        if cost.entries:
            logger.info(
                f"journal: {cost.entries} entries, {cost.num_bytes / 1e6:.1f} MB, {100 * cost.share:.2f} % of the time"
            )


def worker_environment(spec: EngineSpec) -> dict[str, str]:
    """Variables of a worker process beside the trainer's own: its accelerators, and threads that do not fight."""
    variables = {}
    if spec.devices:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(spec.devices)
    else:
        variables["OMP_NUM_THREADS"] = str(
            torch.get_num_threads()
        )  # the share of the cores that the trainer took
    if spec.name == "vllm":
        from swift_rlx.backends.vllm_environment import environment

        variables |= environment(spec)
    return variables
