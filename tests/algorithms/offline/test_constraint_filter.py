"""The three constraints, their use as a rejection or a penalty, and the refusal of limits that fit no data."""

import pytest
import torch
from torch import tensor

from swift_rlx.algorithms.offline import (
    Candidate,
    ConstraintFilter,
    LengthThresholds,
    Limits,
    ReferenceTokens,
    pooled_words,
    token_counts,
)
from swift_rlx.errors import ConfigError

WORDS = tensor([4.0, 3.0, 2.0, 1.0, 0.0])
REFERENCE = ReferenceTokens.of(WORDS)
OWN = torch.arange(5).repeat_interleave(WORDS.long())  # ten tokens, as the data has them
FILTER = ConstraintFilter(REFERENCE, LengthThresholds(((3, 0.3),)))


def candidate(token_ids=OWN, length=10.0, found=(), wanted=()):
    return Candidate(token_ids, length, frozenset(found), frozenset(wanted))


def judge(*candidates, limits=None):
    chosen = FILTER if limits is None else ConstraintFilter(REFERENCE, FILTER.thresholds, limits)
    return chosen.judge(candidates)


def test_each_constraint_is_judged_for_itself():
    verdict = judge(
        candidate(),
        candidate(torch.full((10,), 4)),
        candidate(length=20.0),
        candidate(found="ab", wanted="abcd"),
    )
    expected = [[True, True, True], [False, True, True], [True, False, True], [True, True, False]]
    assert verdict.passes_BC.tolist() == expected
    assert verdict.kept_B.tolist() == [True, False, False, False]
    assert verdict.penalties(0.5).tolist() == [0.0, 0.5, 0.5, 0.5]
    assert verdict.pass_rates() == {
        "constraints/words_passed": 0.75,
        "constraints/length_passed": 0.75,
        "constraints/entities_passed": 0.75,
        "constraints/passed": 0.25,
    }


@pytest.mark.parametrize(
    ("length", "passes"), [(12.5, False), (12.4, True), (10.0, True), (8.4, True), (8.3, False)]
)
def test_lengths_are_strictly_within_a_fifth_of_the_mean(length, passes):
    """Ten tokens: 12.5 * .8 = 10 is not above 10, and 8.33 * 1.2 is 10."""
    assert judge(candidate(length=length)).passes_BC[0, 1].item() is passes


@pytest.mark.parametrize(
    ("found", "wanted", "passes"), [("abc", "abcde", False), ("abcd", "abcde", True), ("", "", True)]
)
def test_more_than_three_fifths_of_the_entities_have_to_occur(found, wanted, passes):
    assert judge(candidate(found=found, wanted=wanted)).passes_BC[0, 2].item() is passes


def test_limits_can_be_moved():
    strange = candidate(length=20.0, found="a", wanted="ab")
    assert not judge(strange).kept_B.any()
    assert judge(strange, limits=Limits(lengths=(0.4, 2.0), min_overlap=0.4)).kept_B.all()


def test_an_empty_batch_has_an_empty_verdict():
    assert judge().kept_B.tolist() == []


def test_pooled_words_need_enough_tokens_for_a_verdict():
    few, many = token_counts(OWN, 5), WORDS * 500
    assert pooled_words(few, REFERENCE).passes is None
    same = pooled_words(many, REFERENCE)
    assert same.divergence == pytest.approx(0.0, abs=1e-12)
    assert same.passes is True
    other = tensor([0.0, 0.0, 0.0, 0.0, 5000.0])
    assert (pooled_words(other, REFERENCE).divergence, pooled_words(other, REFERENCE).passes) == (1.0, False)


def test_a_bound_on_the_distance_is_much_stricter_than_on_the_divergence():
    """Divergence .1 bits is a distance of .32."""
    mixed = tensor([2500.0, 1000.0, 600.0, 300.0, 800.0])
    assert pooled_words(mixed, REFERENCE, largest=0.3).passes is True
    found = pooled_words(mixed, REFERENCE, largest=0.3, as_distance=True)
    assert found.passes is False
    assert found.divergence == pytest.approx(pooled_words(mixed, REFERENCE).divergence ** 0.5)


def test_limits_that_the_data_itself_does_not_meet_are_refused():
    own = [candidate() for _ in range(40)]
    assert FILTER.check_own_data(own).kept_B.all()
    with pytest.raises(
        ConfigError, match=r"constraint on length is refused: only 2.5% of the stored completions"
    ):
        FILTER.check_own_data(own[:1] + [candidate(length=30.0)] * 39)
    FILTER.check_own_data(own[:2] + [candidate(length=30.0)] * 38)  # 5 %


@pytest.mark.parametrize("limits", [{"lengths": (1.2, 0.8)}, {"lengths": (-1.0, 2.0)}, {"min_overlap": 1.0}])
def test_limits_without_sense_are_refused(limits):
    with pytest.raises(ConfigError, match=r"constraint limits with lengths .* are refused"):
        Limits(**limits)
