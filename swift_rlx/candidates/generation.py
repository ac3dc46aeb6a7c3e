"""Generates what a store lacks of the candidates, and seals it round by round.

Which prompts are done is asked of the store: the rows that a writer of the same settings has sealed. So a command that
was killed goes on where it was, a file that has grown is answered where it has grown, and nothing is there twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from swift_rlx.candidates.asked import AskedPrompt
from swift_rlx.candidates.settings import CandidateSettings
from swift_rlx.candidates.source import WindowedPrompts
from swift_rlx.scheduler.ending import GroupEnd, GroupOutcome
from swift_rlx.scheduler.prompts import completion_seed
from swift_rlx.scheduler.threaded import MakeBackends, RolloutThread
from swift_rlx.store import Snapshot, StoredGroup, TrajectoryStore
from swift_rlx.types import Completion, IntArray, PolicyVersion, Prompt, Score, TrajectoryGroup

PLACEHOLDER = Score(0.0)
"""The scheduler hands over answers that have a reward; this one is never stored."""


class Encoder(Protocol):
    """Makes token ids of prompts, and text of answers, as training does. Each is called by a thread of its own."""

    def prompt(self, messages: list[dict[str, object]]) -> list[int]:
        """The prompt up to where the answer begins."""

    def text(self, token_ids: IntArray) -> str:
        """An answer without what only ends it."""


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """`max_inflight`: answers that each of `workers` makes at a time. `timeout_s`: of the first attempt at one.

    A round is sealed after `seal_rows` rows or `seal_s` seconds, whichever comes first: so much is lost by a kill.
    """

    max_inflight: int = 256
    workers: int = 1
    timeout_s: float = 3600.0
    seal_rows: int = 8192
    seal_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Generated:
    """`failed`: the prompts that have no candidates now, with the reason."""

    groups: int
    rows: int
    tokens: int
    failed: tuple[tuple[AskedPrompt, str], ...]


def finished(snapshot: Snapshot, writer: str) -> set[tuple[int, int]]:
    """Keys of the prompts whose candidates this writer has sealed."""
    import pyarrow.compute as pc

    keys: set[tuple[int, int]] = set()
    for chunk in snapshot.chunks:
        is_own = np.asarray(
            pc.equal(chunk.columns["writer"], writer).to_numpy(zero_copy_only=False), np.bool_
        )
        epochs, indices = chunk.fixed("prompt_epoch")[is_own], chunk.fixed("prompt_index")[is_own]
        keys.update(zip(epochs.tolist(), indices.tolist(), strict=True))
    return keys


def lacking(store: TrajectoryStore, asked: Sequence[AskedPrompt], writer: str) -> list[AskedPrompt]:
    """The prompts of which the store has no candidates by this writer, in their order."""
    done = finished(store.snapshot(), writer)
    return [one for one in asked if one.key not in done]


def generate(
    store: TrajectoryStore,
    due: Sequence[AskedPrompt],
    settings: CandidateSettings,
    make_backends: MakeBackends,
    encoder: Encoder,
    limits: GenerationLimits | None = None,
    on_stored: Callable[[int], None] = lambda count: None,
) -> Generated:
    """Generate the candidates of prompts that are `lacking`, and add them to the store; in any order.

    `on_stored`: told how many prompts more have been answered. Raises what ends the scheduler, and `StoreError`; what
    was finished by then is sealed.
    """
    if not due:
        return Generated(0, 0, 0, ())
    run = _Run(due, settings, encoder, limits or GenerationLimits())
    with store.writer(settings.writer) as writer, contextlib.closing(run.batches(make_backends)) as batches:
        sealed_s = time.monotonic()
        try:
            for groups in batches:
                writer.add(groups)
                on_stored(len(groups))
                if (
                    writer.num_rows >= run.limits.seal_rows
                    or time.monotonic() - sealed_s >= run.limits.seal_s
                ):
                    writer.seal()
                    sealed_s = time.monotonic()
        finally:
            if writer.num_rows:
                writer.seal()
    return run.generated()


class _Run:
    """One call of `generate`."""

    def __init__(
        self,
        due: Sequence[AskedPrompt],
        settings: CandidateSettings,
        encoder: Encoder,
        limits: GenerationLimits,
    ) -> None:
        self.limits = limits
        self._by_key = {one.key: one for one in due}
        self._settings, self._encoder = settings, encoder
        self._config = settings.rollout_config(len(due), limits.max_inflight, limits.timeout_s)
        most = -(-limits.workers * limits.max_inflight // settings.count)
        window = 2 * max(self._config.batch_groups, most)
        self._source = WindowedPrompts(map(self._prompt, due), window)
        self._failed: list[tuple[AskedPrompt, str]] = []
        self._groups = self._rows = self._tokens = 0

    def batches(self, make_backends: MakeBackends) -> Generator[list[StoredGroup], None, None]:
        """Groups as they are finished."""
        with RolloutThread(
            self._config,
            make_backends,
            self._source,
            _placeholders,
            version=PolicyVersion(),
            on_end=self._on_end,
        ) as rollout:
            while (batch := rollout.next_batch()) is not None:
                yield [self._stored(one.group) for one in batch.groups]

    def generated(self) -> Generated:
        """What was made."""
        return Generated(self._groups, self._rows, self._tokens, tuple(self._failed))

    def _prompt(self, asked: AskedPrompt) -> Prompt:
        ids = np.asarray(self._encoder.prompt(asked.messages), np.int32)
        return Prompt(asked.index, ids, asked.epoch, asked.columns)

    def _on_end(self, end: GroupEnd) -> None:
        if end.outcome is GroupOutcome.DROPPED:
            self._failed.append((self._by_key[end.group.prompt.key], end.detail))
        self._source.ended()

    def _stored(self, group: TrajectoryGroup) -> StoredGroup:
        asked, settings = self._by_key[group.prompt.key], self._settings
        samplings = tuple(
            replace(
                settings.sampling_of(one.member),
                seed=completion_seed(settings.seed, group.prompt, one.member),
            )
            for one in group.members
        )
        unscored = tuple(replace(one, score=Score(None), scored_s=0.0) for one in group.members)
        self._groups += 1
        self._rows += len(unscored)
        self._tokens += sum(one.completion.num_tokens for one in unscored)
        return StoredGroup(
            replace(group, order=asked.place, members=unscored),
            tuple(self._encoder.text(one.completion.token_ids) for one in unscored),
            samplings,
            engine=settings.engine,
            prompt_id=asked.prompt_id,
        )


async def _placeholders(prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
    return [PLACEHOLDER] * len(completions)
