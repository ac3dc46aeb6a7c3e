"""What every reward must do, as one call in the tests of a reward's author.

The rules
- values: one finite number or None per completion, and the expected ones where an example states them
- repeatable: the same completions score the same again (unless told that the reward draws at random)
- order: the score of a completion does not depend on where in the batch it stands
- odd text: empty, blank, very long, unclosed code fence, Chinese, Arabic, emoji: scored or None, in bounded
  time
- columns: columns that it does not know are no problem, those that ms-swift adds included
- arguments: what it is given is not changed
- importable: a worker process can get it by its import path
"""

import asyncio
import copy
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.registry import one_line
from swift_rlx.rewards import AsyncCheckedReward, Reward, checked_reward, describe_reward, resolve_reward
from swift_rlx.rewards.spec import callable_name

_ODD_TEXTS = {
    "an empty completion": "",
    "a blank completion": " \n\t ",
    "a very long completion": "The same sentence again. " * 8000,
    "a very long word": "x" * 200_000,
    "an unclosed code fence": "Here is the code:\n```python\nx = 1  # one",
    "a Chinese completion": "答案是四十二。因为六乘以七等于四十二。",
    "an Arabic completion": "الجواب هو اثنان وأربعون؟",
    "emoji and control characters": "👩‍👩‍👧 ok\x00\r\n\u2028\ufeff",
}


@dataclass(frozen=True)
class Example:
    """A completion with the columns of its row; `expected` is its score (None = unscored), where stated."""

    completion: Any
    columns: Mapping[str, Any] = field(default_factory=dict)
    expected: float | EllipsisType | None = ...


def check_reward(
    reward: str | Callable[..., Any],
    examples: Sequence[str | Example],
    *,
    deterministic: bool = True,
    max_seconds: float = 10.0,
    args: Any = None,
) -> None:
    """Check a reward against the rules at the top of this module.

    reward: the name under which it is registered, or the function, class or object itself. examples:
    completions that it should score, as text or, where the reward needs columns, as `Example`; the odd texts
    are tried with the columns of the first. deterministic: False for a reward that draws at random.
    max_seconds: for one odd text. args: the training arguments, for a class that takes them.

    Raises AssertionError listing every broken rule, PluginError where the reward cannot be found or called,
    ConfigError without examples.
    """
    if not examples:
        raise ConfigError(
            "check_reward got no examples: give at least one completion that the reward should score"
        )
    if isinstance(reward, str):
        described = resolve_reward(reward, args)
    else:
        described = describe_reward(callable_name(reward), reward, args=args)
    rows = [row if isinstance(row, Example) else Example(row) for row in examples]
    subject = _Subject(described)
    broken = [*_values(subject, rows)]
    if not broken:  # without scores there is nothing to compare
        rules: list[_Rule] = [_repeatable, _order] if deterministic else []
        for rule in (*rules, _columns, _arguments):
            broken += _findings(rule, subject, rows)
        broken += _odd_text(subject, rows[0], max_seconds)
    broken += _importable(described)
    if broken:
        listed = "".join(f"\n- {each}" for each in broken)
        raise AssertionError(f"{described.spec.label} breaks {len(broken)} rule(s) of a reward:{listed}")


class _Subject:
    """The reward under test; `score` calls it the way the trainer does."""

    def __init__(self, reward: Reward) -> None:
        self._checked = checked_reward(reward)

    def score(self, rows: Sequence[Example], **shared: Any) -> list[float | None]:
        names = {name for row in rows for name in row.columns}
        columns = {name: [row.columns.get(name) for row in rows] for name in names}
        completions = [row.completion for row in rows]
        if isinstance(self._checked, AsyncCheckedReward):
            return asyncio.run(self._checked(completions, **columns, **shared))
        return self._checked(completions, **columns, **shared)


_Rule = Callable[[_Subject, Sequence[Example]], Iterator[str]]


def _findings(rule: _Rule, subject: _Subject, rows: Sequence[Example]) -> list[str]:
    try:
        return list(rule(subject, rows))
    except RewardError as error:
        return [f"{rule.__name__.strip('_')}: {error}"]


def _values(subject: _Subject, rows: Sequence[Example]) -> Iterator[str]:
    try:
        scores = subject.score(rows)
    except RewardError as error:
        yield f"values: {error}"
        return
    for index, (row, score) in enumerate(zip(rows, scores, strict=True)):
        if not isinstance(row.expected, EllipsisType) and not _equal(score, row.expected):
            yield f"values: example {index} scored {score}, expected {row.expected}"


def _repeatable(subject: _Subject, rows: Sequence[Example]) -> Iterator[str]:
    first, second = subject.score(rows), subject.score(rows)
    if not _all_equal(first, second):
        yield f"repeatable: the same completions scored {first}, then {second}"


def _order(subject: _Subject, rows: Sequence[Example]) -> Iterator[str]:
    forward, backward = subject.score(rows), subject.score(rows[::-1])
    if not _all_equal(forward, backward[::-1]):
        yield f"order: the scores {forward} became {backward[::-1]} when the batch was turned round"


def _odd_text(subject: _Subject, example: Example, max_seconds: float) -> Iterator[str]:
    for what, text in _ODD_TEXTS.items():
        start = time.monotonic()
        try:
            subject.score([Example(text, example.columns)])
        except RewardError as error:
            yield f"odd text: {what}: {error}"
        seconds = time.monotonic() - start
        if seconds > max_seconds:
            yield f"odd text: {what} took {seconds:.1f} s, the limit is {max_seconds:g} s"


def _columns(subject: _Subject, rows: Sequence[Example]) -> Iterator[str]:
    added = {
        "a_column_that_nobody_knows": [0] * len(rows),
        "messages": [[{"role": "user", "content": "?"}]] * len(rows),
        "finish_reason": ["stop"] * len(rows),
    }
    given = {name for row in rows for name in row.columns}
    # The scores may differ (a reward may well read `finish_reason`), an error may not be.
    subject.score(rows, trainer_state=None, **{k: v for k, v in added.items() if k not in given})
    yield from ()


def _arguments(subject: _Subject, rows: Sequence[Example]) -> Iterator[str]:
    before = copy.deepcopy(list(rows))
    subject.score(rows)
    if before != list(rows):
        yield "arguments: the reward changed the completions or columns that it was given: work on a copy"


def _importable(reward: Reward) -> Iterator[str]:
    try:
        pickle.loads(pickle.dumps(reward.target))
    except Exception as error:  # noqa: BLE001 - pickle raises whatever the object does
        yield f"importable: {one_line(error)}; define it at the top level of a module"


def _equal(score: float | None, other: float | None) -> bool:
    if score is None or other is None:
        return score is other
    return math.isclose(score, other, rel_tol=1e-6, abs_tol=1e-6)


def _all_equal(scores: Sequence[float | None], others: Sequence[float | None]) -> bool:
    return all(map(_equal, scores, others))
