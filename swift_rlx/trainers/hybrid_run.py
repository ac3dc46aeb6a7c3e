"""A run that trains on fresh batches and on groups of its store: what rank 0 decides, counts and saves.

    checkpoint-N/rlx/store/state.json    the schedule, and what of the store is of this run
    checkpoint-N/rlx/store/uses.arrow    how often each stored group has trained

What counts of the store is a function of the batches so far: what others had sealed when the run began, and the run's
own groups of all fresh batches before. So a resumed run takes the same groups.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from swift.utils import get_logger

from swift_rlx.clock import LoopClock
from swift_rlx.errors import CheckpointError
from swift_rlx.integration.store_fields import refuse_without_logprobs
from swift_rlx.scheduler import BatchSource, HybridSchedule, HybridState, WaitFiller
from swift_rlx.store import BatchRules, GroupBatches, TrajectoryStore
from swift_rlx.trainers.rollout_rows import Origin, PickedBatch
from swift_rlx.trainers.store_sealing import FreshBatch, Lineage, RoundSealer, RunFacts
from swift_rlx.trainers.stored_batches import BatchShape, PickedGroup, stored_batch
from swift_rlx.trainers.stored_prompts import EncodePrompt, warn_of_other_prompts

logger = get_logger()
STATE, USES = "state.json", "uses.arrow"


@dataclass(frozen=True)
class HybridPlan:
    """The flags. `groups` of `group_size` rows make a generation batch, `fill_groups` a batch that fills a wait.

    `columns`: names of the rewards, whose raw values are shown. `batches_before`: generation batches that the run had
    picked up where it begins to have a store. `vocabulary`: tokens that the model has. `encode`: what this run makes of
    a prompt; None: not compared with what the store has.
    """

    directory: str
    ratio: float
    groups: int
    fill_groups: int
    group_size: int
    rules: BatchRules
    fills: bool = False
    columns: tuple[str, ...] = ()
    batches_before: int = 0
    vocabulary: int = 2**31
    encode: EncodePrompt | None = None


class SavedRun(msgspec.Struct, frozen=True):
    """What a checkpoint keeps beside the uses."""

    lineage: Lineage
    schedule: dict[str, int]
    recipe: str
    fills: int = 0


@dataclass(frozen=True)
class Restart:
    """Where a resumed run goes on: its checkpoint's folder, fresh batches that the journal has behind it, and how often
    the run was started before."""

    folder: Path
    replayed: int
    incarnation: int


class HybridRun:
    """See the module. `recipe`: what the run's rewards are made of now.

    Raises `StoreError` for a store that cannot be used, `CheckpointError` for one that does not fit the checkpoint, and
    ConfigError for stored groups that cannot be corrected for their policy.
    """

    def __init__(self, plan: HybridPlan, recipe: str, restart: Restart | None = None) -> None:
        self.plan, self.recipe = plan, recipe
        self.filler = WaitFiller(LoopClock())
        self.sealer: RoundSealer | None = None
        self.fills = 0
        self.uses_of_last = 0.0
        """How often the groups of the last stored batch have trained from the store, mean."""
        self._due: Origin | None = None
        self._store = TrajectoryStore.create(plan.directory)
        saved = None if restart is None else _load(restart.folder / STATE)
        if saved is None or restart is None:
            before, name = plan.batches_before, f"run-{secrets.token_hex(6)}"
            self.lineage = Lineage(name, before, others=self._store.sealed())
            self.schedule = HybridSchedule(plan.ratio, HybridState(fresh=before))
        else:
            self.schedule = HybridSchedule(plan.ratio, HybridState.of(saved.schedule))
            rounds = self._store.sealed().get(saved.lineage.writer, -1) + 1
            self.lineage = saved.lineage.after_resume(
                self.num_fresh, rounds, restart.replayed, restart.incarnation
            )
            self.recipe, self.fills = saved.recipe, saved.fills
        self._seen = self.num_fresh
        self._batches = self._open(None if saved is None or restart is None else restart.folder / USES)

    @property
    def num_fresh(self) -> int:
        """Fresh batches so far."""
        return self.schedule.state.fresh

    def begin_sealing(self, facts: RunFacts) -> None:
        """Start the thread that writes."""
        store = TrajectoryStore.open(self.plan.directory)  # an object for that thread
        self.sealer = RoundSealer(store, self.lineage.writer, self.lineage.first, facts)

    # --- what trains next ----------------------------------------------------------------------------------------

    def decide(self, step: int, allow_batch: Callable[[], None]) -> Origin:
        """Where the generation batch at this optimizer step comes from; the same until it is there.

        `allow_batch`: called where one that was due from the store is a fresh one.
        """
        if self._due is None:
            self._look(step)
            lacking = self.schedule.state.lacking
            has_stored = bool(self.plan.ratio) and self._batches.num_ready(step) >= self.plan.groups
            source = self.schedule.take(has_stored=has_stored)
            self._due = Origin.STORED if source is BatchSource.STORED else Origin.FRESH
            if self.schedule.state.lacking > lacking:
                allow_batch()
        return self._due

    def ask(self, step: int) -> WaitFiller | None:
        """What decides whether the trainer fills its wait for a fresh batch."""
        if not self.plan.fills:
            return None
        self.filler.has_stored = self._batches.num_ready(step) >= self.plan.fill_groups
        return self.filler

    def take(self, step: int, origin: Origin) -> PickedBatch:
        """Stored groups that train now: a generation batch, or what joins the step that waits."""
        count = self.plan.groups if origin is Origin.STORED else self.plan.fill_groups
        numbers = self._batches.take(step, count)
        snapshot, own = self._batches.snapshot, self.lineage.writers
        read = {
            number: PickedGroup(snapshot.group(number), snapshot.writer_of(number) in own)
            for number in sorted(numbers)  # those of one chunk together, whose texts are unpacked at once
        }
        if origin is Origin.STORED:
            self._due = None
            self.uses_of_last = self._batches.mean_uses(numbers)
        else:
            self.fills += 1
        shape = BatchShape(count, self.plan.group_size)
        return stored_batch([read[number] for number in numbers], shape, step, self.plan.columns, origin)

    def came(self) -> None:
        """The fresh batch that was due is picked up."""
        self._due = None

    def seal(self, batch: FreshBatch) -> None:
        """Have the last fresh batch stored, with its scores; returns at once."""
        assert self.sealer is not None
        self.recipe = batch.recipe
        self.sealer.add(self.num_fresh - 1, batch)

    def num_ready(self, step: int) -> int:
        """Groups that may train from the store now."""
        return self._batches.num_ready(step)

    # --- the store -----------------------------------------------------------------------------------------------

    def _rules(self) -> BatchRules:
        wanted = replace(
            self.plan.rules.wanted,
            recipe=self.recipe,
            recipe_may_lack=True,
            own=self.lineage.writers,
            sealed=self.lineage.sealed(self.num_fresh),
        )
        return replace(self.plan.rules, wanted=wanted)

    def _open(self, uses: Path | None) -> GroupBatches:
        snapshot = self._store.snapshot()
        trains = bool(self.plan.ratio) or self.plan.fills
        if trains:
            snapshot.check_vocabulary(self.plan.vocabulary)
            refuse_without_logprobs(snapshot)
        # With a bound of the age nothing trains but what this run has made.
        if trains and self.plan.encode is not None and self.plan.rules.wanted.max_age is None:
            warn_of_other_prompts(snapshot, self.plan.encode)
        if uses is None:
            batches = GroupBatches(snapshot, self._rules())
        else:
            batches = GroupBatches.restored(snapshot, self._rules(), uses)
        left_out = [f"{count} left out: {why}" for why, count in batches.selection.left_out.items() if count]
        if snapshot.num_groups:
            logger.info(
                f"store '{self.plan.directory}': {', '.join([f'{snapshot.num_groups} groups', *left_out])}"
            )
        return batches

    def _look(self, step: int) -> None:
        """See the fresh batches that were picked up since."""
        if self._seen == self.num_fresh or not (self.plan.ratio or self.plan.fills):
            return
        assert self.sealer is not None
        self.sealer.wait(self.num_fresh)
        snapshot = self._store.snapshot(self._batches.snapshot)
        self._batches = self._batches.moved_to(snapshot, self.lineage.sealed(self.num_fresh), self.recipe)
        self._seen = self.num_fresh

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write what `Restart` reads; what the checkpoint needs of the store is sealed by then."""
        assert self.sealer is not None
        self.sealer.wait(self.num_fresh)
        folder.mkdir(parents=True, exist_ok=True)
        self._batches.save(folder / USES)
        saved = SavedRun(self.lineage, self.schedule.state.as_dict(), self.recipe, self.fills)
        partial = folder / f"{STATE}.partial"
        partial.write_bytes(msgspec.json.encode(saved))
        partial.replace(folder / STATE)

    def close(self) -> None:
        """Seal what was picked up, and end the thread."""
        if self.sealer is not None:
            self.sealer.close()

    def summary(self) -> str:
        """One line for the end of the run."""
        state, sealed = self.schedule.state, 0 if self.sealer is None else self.sealer.num_sealed
        parts = [
            f"{sealed} fresh batches stored as '{self.lineage.writer}'",
            f"{state.stored} stored batches trained",
        ]
        if state.lacking:
            parts.append(f"{state.lacking} that were due from the store were fresh, for lack of groups")
        if self.plan.fills:
            counts = self.filler.counts
            parts.append(
                f"{self.fills} stored batches filled waits, {counts.seconds:.0f} s in this start of the run"
            )
        return f"store '{self.plan.directory}': {', '.join(parts)}"


def _load(path: Path) -> SavedRun | None:
    """None for a checkpoint of a run without a store."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SavedRun)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(
            f"'{path}' cannot be read ({error}); resume from an earlier checkpoint"
        ) from error
