"""What survives a checkpoint, so that a run goes on without training a prompt twice or leaving one out.

A snapshot belongs to the weights that the trainer has made by then, and is taken when everything that was picked up
is trained (or saved by the trainer itself). It holds the groups that are scored and wait, with their answers, and the
keys of the prompts that were admitted and are not that far: these are generated again, from the pristine prompt, with
the same seeds. A prompt that was not admitted is not in it: the source goes on behind the first `admitted` ones.
What a journal says of the time after the snapshot is added to it before the restart (`replay.py`).

After the restart versions are (incarnation + 1, step). Tokens of before keep their steps, and their age goes on to be
counted in steps; so the bound holds across the restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swift_rlx.errors import CheckpointError
from swift_rlx.scheduler.capacity import CapacityCounts
from swift_rlx.scheduler.config import RolloutConfig
from swift_rlx.scheduler.groups import OpenGroup
from swift_rlx.scheduler.journal_entries import PickedUp
from swift_rlx.scheduler.ready import make_ready
from swift_rlx.scheduler.state import RunState
from swift_rlx.types import DropReason, Fate, PolicyVersion, Prompt, TrajectoryGroup

PromptOf = Callable[[int, int], Prompt]
"""The prompt of (index, epoch), as it was when it was admitted first."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenPrompt:
    """A prompt that was admitted and has not ended; `ready`: its scored group, None where it is generated again.

    `held`: tokens that its answers had by then, where it is generated again: counted as cut, unless a journal says
    what became of them. `lost`: tokens that were made for it before and are in no answer, by what they are counted as.
    """

    index: int
    epoch: int
    order: int
    rounds: int
    ready: TrajectoryGroup | None = None
    held: int = 0
    lost: Mapping[Fate, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RolloutState:
    """A snapshot of `RolloutScheduler`, plain data; `state_file.py` keeps it in a directory.

    `version`: of the trainer's weights, its incarnation that of the newest start which left something in it.
    `open`: in the order of admission. The rest are the counters of
    `Statistics`. The prompt in `ready` may be a stand-in with nothing but its key.
    """

    version: PolicyVersion
    group_size: int
    capacity: CapacityCounts
    open: tuple[OpenPrompt, ...]
    trained: int
    dropped: Mapping[DropReason, int]
    regenerated: int
    tokens: Mapping[Fate, int]
    staleness: Mapping[int, int]
    retries: int
    failovers: int
    failures: Mapping[str, int]
    repeated_tokens: int = 0
    replay: tuple[PickedUp, ...] = ()
    """Batches that the trainer takes again before others; their groups are among `open`, with their answers."""
    journal: str = ""
    """Under which name a journal keeps what happens after the snapshot."""

    @property
    def incarnation(self) -> int:
        """Starts of the run before the one that took the snapshot."""
        return self.version.incarnation

    @property
    def next_version(self) -> PolicyVersion:
        """Of the same weights in the next start."""
        return PolicyVersion(self.incarnation + 1, self.version.step)

    @property
    def admitted(self) -> int:
        """Prompts that the source had handed out and that were admitted."""
        return self.capacity.admitted

    def check(self, version: PolicyVersion, config: RolloutConfig) -> None:
        """Raise `CheckpointError` unless a run that starts at `version` can go on from here."""
        if version.incarnation <= self.incarnation or version.step < self.version.step:
            raise CheckpointError(
                f"rollout state of weights {self.version} cannot be resumed at {version}: the incarnation has to be"
                f" higher and the step at least {self.version.step}; load the checkpoint that it was saved with"
            )
        if config.group_size != self.group_size:
            raise CheckpointError(
                f"rollout state with {self.group_size} completions per prompt cannot be resumed with"
                f" {config.group_size}; keep the group size, or start without the rollout state"
            )


def with_prompt(group: TrajectoryGroup, prompt: Prompt) -> TrajectoryGroup:
    """The group with `prompt` in the place of the stand-in."""
    members = tuple(replace(member, prompt=prompt) for member in group.members)
    return replace(group, prompt=prompt, members=members)


def capture(run: RunState, journal: str = "") -> RolloutState:
    """The snapshot of a run; `journal`: under which name what comes after it is kept.

    Tokens of answers that will be generated again are counted as cut.
    """
    ready = {one.group.order: one.group for one in run.ready.groups()}
    tokens = {fate: run.ledger.tokens(fate) for fate in Fate}
    kept = sum(member.completion.num_sampled for group in ready.values() for member in group.members)
    tokens[Fate.CUT] += tokens[Fate.IN_FLIGHT] - kept
    tokens[Fate.IN_FLIGHT] = kept
    return RolloutState(
        version=run.version,
        group_size=run.config.group_size,
        capacity=run.capacity.counts(),
        open=tuple(_open_prompt(one, ready.get(one.order)) for one in run.book),
        trained=run.book.trained,
        dropped=dict(run.book.dropped),
        regenerated=run.book.regenerated,
        tokens=tokens,
        staleness=dict(run.staleness),
        retries=run.retries,
        failovers=run.router.failovers,
        failures=dict(run.failures),
        repeated_tokens=run.repeated_tokens,
        replay=tuple(run.replay),
        journal=journal,
    )


def _open_prompt(group: OpenGroup, ready: TrajectoryGroup | None) -> OpenPrompt:
    prompt, held = group.prompt, group.held_tokens if ready is None else 0
    return OpenPrompt(prompt.index, prompt.epoch, group.order, group.rounds, ready, held, dict(group.lost))


def restore(
    state: RolloutState, run: RunState, prompt_of: PromptOf | None, generate: Callable[[OpenGroup, int], None]
) -> None:
    """Open the groups again in their old order: those that are scored as ready, the others through `generate`.

    `generate(group, step)` is to generate a group once the weights of that optimizer step are live.
    """
    run.book.trained = state.trained
    run.book.dropped.update(state.dropped)
    run.book.regenerated = state.regenerated
    run.staleness.update(state.staleness)
    run.retries, run.router.failovers = state.retries, state.failovers
    run.failures.update(state.failures)
    run.repeated_tokens = state.repeated_tokens
    if state.open and prompt_of is None:
        raise CheckpointError(
            f"{len(state.open)} prompts wait in the rollout state; give prompt_of to find them"
        )
    run.replay.extend(state.replay)
    begin = _generation_step(state, run)
    for one in state.open:
        assert prompt_of is not None
        prompt = prompt_of(one.index, one.epoch)
        if prompt.key != (one.epoch, one.index):
            raise CheckpointError(
                f"prompt (epoch {one.epoch}, index {one.index}) was asked for to resume it, and {prompt.key} was given;"
                " prompt_of takes (index, epoch)"
            )
        group = run.book.restore(prompt, one.order, one.rounds, one.ready)
        for fate, tokens in ((Fate.CUT, one.held), *one.lost.items()):
            run.book.lost(group, fate, tokens)
        if one.ready is None:
            generate(group, begin)
        else:
            run.ready.add(make_ready(with_prompt(one.ready, prompt), run.config))
    _check_replay(state.replay, run)


def _generation_step(state: RolloutState, run: RunState) -> int:
    """From which weights on what is generated finds a place within the bound, behind the batches that are replayed."""
    step, charged = run.version.step, run.capacity.charged
    for picked in state.replay:
        if charged <= run.config.places_at(step):
            break
        charged -= len(picked.orders)
        step = picked.step + run.config.steps_per_batch
    # The trainer must not wait for weights that it makes only with what is generated.
    return min(step, max(state.replay[-1].step, run.version.step)) if state.replay else step


def _check_replay(replay: Sequence[PickedUp], run: RunState) -> None:
    """Raise `CheckpointError` where the settings of now do not allow a batch that was trained under those of then."""
    ready = {one.group.order: one for one in run.ready.groups()}
    for picked in replay:
        late = [order for order in picked.orders if ready[order].deadline < picked.step]
        if late or len(picked.orders) > run.config.batch_groups:
            raise CheckpointError(
                f"the batch that was picked up at optimizer step {picked.step} after the checkpoint cannot be trained"
                f" again under max_staleness {run.config.max_staleness}, stale_tokens {run.config.stale_tokens.value}"
                f" and batch_groups {run.config.batch_groups}; resume with the settings that it was made with, or move"
                " the journal away to go on from the checkpoint alone"
            )
