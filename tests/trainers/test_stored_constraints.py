"""Stored completions against the rest of their store: by words, by the length of their group, by entities."""

from dataclasses import replace

import numpy as np
import pytest
from answered_store import answered_group

from swift_rlx.algorithms.offline import CONSTRAINTS, Limits
from swift_rlx.algorithms.offline.constraint_settings import ConstraintPlan
from swift_rlx.errors import ConfigError
from swift_rlx.integration.stored_dataset import GROUP
from swift_rlx.store import StoredGroup
from swift_rlx.store.stored_group import as_text
from swift_rlx.trainers.stored_constraints import StoredConstraints, StoredTexts
from swift_rlx.trainers.stored_rows import Place
from swift_rlx.types import TrajectoryGroup

WIDE = Limits((0.1, 10.0), 0.6)
NAMES = {11: "we saw Paris", 12: "we saw Rome", 13: "we saw nothing"}


def group(number: int, *answers: list[int]) -> StoredGroup:
    """Answers of these tokens; the first has the best reward."""
    made = answered_group(number, len(answers), rewards=tuple(range(len(answers), 0, -1))).group
    members = tuple(
        replace(
            one,
            completion=replace(
                one.completion,
                token_ids=np.array(tokens, np.int32),
                logprobs=np.full(len(tokens), -1.0, np.float32),
                policy_steps=np.zeros(len(tokens), np.int32),
            ),
        )
        for one, tokens in zip(made.members, answers, strict=True)
    )
    return StoredGroup(TrajectoryGroup(made.prompt, number, members))


def constraints(groups: list[StoredGroup], plan: ConstraintPlan, seed: int = 0) -> StoredConstraints:
    texts = StoredTexts(groups.__getitem__, lambda ids: " ".join(NAMES.get(one, "") for one in ids), 300)
    return StoredConstraints(plan, rows(groups), texts, seed)


def rows(groups: list[StoredGroup], asked: str = "say") -> list[dict[str, object]]:
    messages = [{"role": "system", "content": "you are Qwen"}, {"role": "user", "content": asked}]
    return [{GROUP: as_text(number), "messages": messages} for number in range(len(groups))]


def judged(
    found: StoredConstraints, groups: list[StoredGroup], number: int, asked: str = "say"
) -> list[list[bool]]:
    members = groups[number].group.members
    row = rows(groups, asked)[number]
    return found.judge([Place(one) for one in members], [row] * len(members)).tolist()


def test_a_completion_of_words_that_the_store_hardly_has_is_found() -> None:
    usual = [group(number, [20, 21, 22, 23], [23, 22, 21, 20]) for number in range(40)]
    groups = [*usual, group(40, [20, 21, 22, 23], [30, 31, 32, 33])]
    found = constraints(groups, ConstraintPlan(constraints=("words",)))
    assert judged(found, groups, 40) == [[True, True, True], [False, True, True]]
    assert found.own.kept_B.sum() == 81
    everything = constraints(groups, ConstraintPlan(constraints=("words",), quantile=1.0))
    assert everything.own.kept_B.all()


def test_lengths_are_measured_by_the_mean_of_the_group_and_an_empty_place_holds_them() -> None:
    groups = [group(0, [20] * 4, [20] * 4, [20] * 10), group(1, [20] * 9, [20] * 9, [20] * 9)]
    found = constraints(groups, ConstraintPlan(constraints=("length",), limits=Limits((0.5, 1.2))))
    assert [row[1] for row in judged(found, groups, 0)] == [True, True, False], "the mean is 6"
    assert all(row[1] for row in judged(found, groups, 1))
    long = groups[0].group.members[2]
    assert found.judge([Place(long, is_empty=True)], rows(groups)[:1]).all()


def test_entities_are_those_of_the_question_and_of_the_best_answer_and_none_of_the_system_prompt() -> None:
    groups = [group(0, [11], [12], [11, 12]), group(1, [13], [13])]
    plan = ConstraintPlan(constraints=("entities",), limits=WIDE)
    found = constraints(groups, plan)
    place = CONSTRAINTS.index("entities")
    assert [row[place] for row in judged(found, groups, 0)] == [True, False, True]
    assert [row[place] for row in judged(found, groups, 1)] == [True, True]
    of_both = judged(found, groups, 0, asked="is it Rome or Oslo")
    assert [row[place] for row in of_both] == [False, False, True], "two of Paris, Rome and Oslo"


def test_a_constraint_that_almost_all_of_the_store_fails_is_refused() -> None:
    groups = [group(number, [20] * 2, [20] * 20) for number in range(30)]
    with pytest.raises(ConfigError, match=r"constraint on length is refused: only 0.0% of the stored compl"):
        constraints(groups, ConstraintPlan())
    assert constraints(groups, ConstraintPlan(constraints=("words", "entities"))).own.kept_B.all()


def test_the_seed_alone_decides_what_the_filter_is_calibrated_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift_rlx.trainers.stored_constraints.SAMPLE_ROWS", 6)
    groups = [group(number, [20 + number] * 3, [20 + number] * 3) for number in range(50)]
    plan = ConstraintPlan(constraints=("words",))

    def seen(seed: int) -> list[float]:
        return constraints(groups, plan, seed).reference.distribution_V.tolist()

    assert sum(share > 0 for share in seen(1)) == 3, "whole groups, until there are enough completions"
    assert seen(1) == seen(1) != seen(2)
