"""What a run generates goes into its store: one sealed round for each fresh batch, by a thread beside the training.

A round has the number of its batch, counted over all starts of the run. A batch that is trained again after a resume,
because the journal has it, is in the store already: its round is sealed, so it is not written twice. Before a round is
sealed the journal has the batch. Where the journal is lost, and batches behind the checkpoint are made anew, the run
writes under another name, and the rounds behind the checkpoint count no more for it.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from swift.utils import get_logger

from swift_rlx.errors import CheckpointError, StoreError
from swift_rlx.store import StoredGroup, TrajectoryStore
from swift_rlx.store.compaction import compact, sweep
from swift_rlx.types import RewardPart, SamplingParams, Score, TrajectoryGroup

logger = get_logger()
COMPACT_EVERY = 64
"""Rounds; each leaves a small shard for every bucket that it has prompts of."""
COMPACT_BYTES = 2**25
SWEEP_S = 86400.0
CLOSE_S = 60.0


class Lineage(msgspec.Struct, frozen=True):
    """What of the store is of this run, as a checkpoint keeps it.

    `writer`: the name under which the run writes, its first round that of fresh batch number `first`. `past`: earlier
    names with their number of rounds that count. `others`: of each other writer the last round that counted when the
    run began.
    """

    writer: str
    first: int = 0
    past: dict[str, int] = {}
    others: dict[str, int] = {}

    @property
    def writers(self) -> frozenset[str]:
        """All names of the run."""
        return frozenset({self.writer, *self.past})

    def sealed(self, fresh_batches: int) -> dict[str, int]:
        """Of each writer the last round that counts after so many fresh batches."""
        own = {name: count - 1 for name, count in self.past.items()} | {
            self.writer: fresh_batches - self.first - 1
        }
        return self.others | {name: last for name, last in own.items() if last >= 0}

    def after_resume(
        self, fresh_batches: int, sealed_rounds: int, replayed: int, incarnation: int
    ) -> "Lineage":
        """Of a start at a checkpoint with so many fresh batches, `replayed` of which follow from the journal.

        `sealed_rounds`: of the writer, in the store. Raises CheckpointError where the store lacks rounds.
        """
        kept = fresh_batches - self.first
        if sealed_rounds < kept:
            raise CheckpointError(
                f"the store has {sealed_rounds} rounds of '{self.writer}' and the checkpoint needs {kept}; give the"
                " --trajectory_store that the run began with"
            )
        if sealed_rounds <= kept + replayed:
            return self
        logger.warning(
            f"{sealed_rounds - kept - replayed} batches behind the checkpoint are in the store and not in the journal:"
            " they are made anew, and those in the store count for this run no more"
        )
        base = self.writer.partition(".")[0]
        return Lineage(f"{base}.{incarnation}", fresh_batches, self.past | {self.writer: kept}, self.others)


@dataclass(frozen=True)
class ScoredMember:
    """Member of a group with its combined reward, None if it has none, and the parts that this was made of."""

    place: int
    reward: float | None
    parts: tuple[RewardPart, ...]


@dataclass(frozen=True)
class FreshBatch:
    """A picked-up batch as it is stored. `members`: of each group those that may train, with their scores."""

    groups: tuple[TrajectoryGroup, ...]
    members: tuple[tuple[ScoredMember, ...], ...]
    recipe: str


@dataclass(frozen=True)
class RunFacts:
    """What all groups of a run share. `text_of`: the answer's text, called in the thread that seals.

    `flush_journal`: writes what the journal was told; whether that is done.
    """

    sampling: SamplingParams
    engine: str
    text_of: Callable[[TrajectoryGroup, int], str]
    flush_journal: Callable[[], bool] = field(default=lambda: True)


def stored_groups(batch: FreshBatch, facts: RunFacts) -> Iterable[StoredGroup]:
    """The groups of a batch; those of whose members none may train are left out."""
    for group, scored in zip(batch.groups, batch.members, strict=True):
        if scored:
            members = tuple(
                replace(group.members[one.place], score=Score(one.reward, one.parts)) for one in scored
            )
            yield StoredGroup(
                replace(group, members=members),
                texts=tuple(facts.text_of(group, one.place) for one in scored),
                sampling=(facts.sampling,) * len(members),
                engine=facts.engine,
                recipe=batch.recipe,
            )


class RoundSealer:
    """Seals rounds in their order. `first`: the number of the batch that is the first round.

    An error of the store is raised by the next `add` or `wait`.
    """

    def __init__(self, store: TrajectoryStore, writer: str, first: int, facts: RunFacts) -> None:
        self._store, self._first, self._facts = store, first, facts
        self._writer = store.writer(writer)
        self._sealed = first + self._writer.next_round
        self._batches: queue.SimpleQueue[tuple[int, FreshBatch] | None] = queue.SimpleQueue()
        self._change = threading.Condition()
        self._failure: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    @property
    def num_sealed(self) -> int:
        """Fresh batches that are in the store."""
        return self._sealed

    def add(self, number: int, batch: FreshBatch) -> None:
        """Fresh batch `number` is to be stored; returns at once. One that is in the store already is left as it is."""
        self._raise_failure()
        self._batches.put((number, batch))

    def wait(self, count: int, limit_s: float | None = None) -> bool:
        """Return when the first `count` fresh batches are in the store; whether they are."""
        with self._change:
            done = self._change.wait_for(lambda: self._sealed >= count or self._failure is not None, limit_s)
        self._raise_failure()
        return done

    def close(self) -> None:
        """Seal what was added, and end the thread; a second call does nothing. Raises nothing."""
        self._batches.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            logger.warning(f"the last batches were not written to the store within {CLOSE_S:g} s")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise StoreError(
                f"the run cannot write to its store any more: {self._failure}"
            ) from self._failure

    def _run(self) -> None:
        failure: StoreError | None = StoreError("its thread died of the error that was printed above")
        try:
            while (item := self._batches.get()) is not None:
                self._seal(*item)
            failure = None
        except StoreError as error:
            failure = error
            logger.error(f"the store '{self._store.place.url}' cannot be written: {error}")
        finally:
            with self._change:
                self._failure = failure
                self._change.notify_all()
            self._writer.abandon()

    def _seal(self, number: int, batch: FreshBatch) -> None:
        if number < self._sealed:
            return
        if number != self._sealed:
            raise StoreError(f"batch {number} is to be stored behind batch {self._sealed - 1}")
        self._writer.add(stored_groups(batch, self._facts))
        while not self._facts.flush_journal():
            continue  # it raises where its disk does not answer
        self._writer.seal()
        with self._change:
            self._sealed += 1
            self._change.notify_all()
        if self._writer.next_round % COMPACT_EVERY == 0:
            compact(self._store.place, self._store.log, COMPACT_BYTES)
            sweep(self._store.place, self._store.log, SWEEP_S, time.time())


def recipe_of(names: Sequence[str], versions: dict[str, str], weights: Sequence[float], how: str) -> str:
    """What a run's reward is made of, as text; `how`: normalization and ensemble, empty for a plain weighted sum.

    Equal texts mean equal rewards: of two that differ in anything the groups are never in one batch.
    """
    parts = " + ".join(
        f"{weight:g}*{name}@{versions.get(name, '')}" for name, weight in zip(names, weights, strict=True)
    )
    return f"{how or 'weighted'}: {parts}"
