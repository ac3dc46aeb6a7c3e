"""What a simulated run gave, counted the same way for our scheduler and for the peers' rules."""

from __future__ import annotations

from dataclasses import dataclass, fields

from swift_rlx.simulation.setting import WARM_UP_STEPS, Setting


@dataclass(frozen=True, slots=True)
class Outcome:
    """Shares are of the tokens whose fate is decided: of groups in flight at the end nothing is counted."""

    steps_per_h: float
    """Optimizer steps; each has its fresh batches, whatever the store added to it."""
    trainer_busy: float
    """Training over wall time, after the warm-up, on whatever."""
    in_mask: float
    """Share of tokens that trained."""
    tail_in_mask: float
    """The same for the prompts in the slowest 5 %."""
    over_age: float
    """Share of tokens whose answer trained, but that were over the bound and left the mask."""
    lost: float
    """Share of tokens thrown away with their answers."""
    trained_over_bound: float
    """Share of the trained tokens that were older than the bound."""
    tail_share: float
    """Share of the slowest 5 % among the trained prompts; 0.05 is fair."""
    mean_staleness: float
    """Of fresh tokens, as is the next."""
    max_staleness: int
    stored_steps_per_h: float = 0.0
    """What the store added, in steps of as many groups as a step has fresh ones."""
    stored: float = 0.0
    """Share of tokens that are over age and in a store."""
    from_store: float = 0.0
    """Share of tokens that did not train fresh and trained from the store."""
    tail_from_store: float = 0.0
    """The same for the prompts in the slowest 5 %."""


def mean(outcomes: list[Outcome]) -> Outcome:
    """Of runs with different seeds; the largest one for `max_staleness`."""
    means = {
        field.name: sum(getattr(one, field.name) for one in outcomes) / len(outcomes)
        for field in fields(Outcome)
    }
    return Outcome(**{**means, "max_staleness": max(one.max_staleness for one in outcomes)})


class Tally:
    """Counts while a simulated run goes on."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._tail_from_s = setting.tail_latency_s()
        self._ends: list[float] = []
        self._stored_groups: list[int] = []
        self._stored = self._from_store = self._tail_from_store = self._filled = 0
        self._groups = self._tail_groups = 0
        self._trained = self._over_age = self._lost = self._over_bound = 0
        self._tail_trained = self._tail_tokens = 0
        self._age_sum = 0
        self._max_age = 0

    def step(self, end_s: float) -> None:
        """A training step ended."""
        self._ends.append(end_s)
        self._stored_groups.append(self._filled)
        self._filled = 0

    def stored(self, tokens: int) -> None:
        """Tokens over age went into the store with their answers."""
        self._stored += tokens

    def filled(self, groups: list[tuple[int, int]]) -> None:
        """Groups from the store were added to the step: of each the prompt, and its tokens that had not trained."""
        self._filled += len(groups)
        self._from_store += sum(tokens for _, tokens in groups)
        self._tail_from_store += sum(tokens for index, tokens in groups if self._is_tail(index))

    def trained(self, index: int, tokens_by_age: dict[int, int], over_age: int) -> None:
        """A group was trained: tokens in the mask by age in steps, and those that left it."""
        tokens, bound = sum(tokens_by_age.values()), self._setting.max_staleness
        self._groups += 1
        self._trained += tokens
        self._over_age += over_age
        self._over_bound += sum(count for age, count in tokens_by_age.items() if age > bound)
        self._age_sum += sum(age * count for age, count in tokens_by_age.items())
        self._max_age = max(self._max_age, *tokens_by_age, 0)
        if self._is_tail(index):
            self._tail_groups += 1
            self._tail_trained += tokens
            self._tail_tokens += tokens + over_age

    def lost(self, index: int | None, tokens: int) -> None:
        """Tokens of an answer were thrown away; None: not known of which prompt."""
        self._lost += tokens
        if index is not None and self._is_tail(index):
            self._tail_tokens += tokens

    def outcome(self) -> Outcome:
        """After the last step."""
        wall = self._ends[-1] - self._ends[WARM_UP_STEPS - 1]
        steps = len(self._ends) - WARM_UP_STEPS
        stored = sum(self._stored_groups[WARM_UP_STEPS:]) / self._setting.batch_groups
        decided = max(self._trained + self._over_age + self._lost, 1)
        trained = max(self._trained, 1)
        return Outcome(
            steps_per_h=steps / wall * 3600,
            trainer_busy=(steps + stored) * self._setting.train_s / wall,
            in_mask=self._trained / decided,
            tail_in_mask=self._tail_trained / max(self._tail_tokens, 1),
            over_age=self._over_age / decided,
            lost=self._lost / decided,
            trained_over_bound=self._over_bound / trained,
            tail_share=self._tail_groups / max(self._groups, 1),
            mean_staleness=self._age_sum / trained,
            max_staleness=self._max_age,
            stored_steps_per_h=stored / wall * 3600,
            stored=self._stored / decided,
            from_store=self._from_store / decided,
            tail_from_store=self._tail_from_store / max(self._tail_tokens, 1),
        )

    def _is_tail(self, index: int) -> bool:
        return self._setting.group_latency_s(index) >= self._tail_from_s
