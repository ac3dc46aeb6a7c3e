"""Several sources into one reward: one scale, ensembles, weights (vectors of algorithms 4.2 and 6; scenario E 48)."""

import json
import math
import random

import pytest
import torch

from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.rewards import RewardCombiner, combine_rewards
from swift_rlx.rewards.ensemble import (
    Mean,
    UncertaintyWeighted,
    WorstCase,
    disagreement,
    parse_ensemble,
)
from swift_rlx.rewards.normalize import GroupZScore, Moments, RunningZScore, normalizer

NAN = math.nan
SCORES = [0.2, 0.4, 0.9, 0.5]
Z_SCORES = [-1.1766968108, -0.3922322703, 1.5689290811, 0.0]
MEMBERS = torch.tensor([[1.0, 0.2, -0.5], [0.8, 0.6, -0.4], [1.2, -0.2, -0.6]], dtype=torch.float64).T


def columns(*sources: list[float]) -> torch.Tensor:
    return torch.tensor(sources, dtype=torch.float64).T


def groups(*sizes: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def test_the_vector_of_the_z_score() -> None:
    scaled = RunningZScore(["a"]).scaled(columns(SCORES), groups(4), update=True)
    assert scaled[:, 0].tolist() == pytest.approx(Z_SCORES, abs=1e-10)
    assert GroupZScore().scaled(columns(SCORES), groups(4), True)[:, 0].tolist() == pytest.approx(
        Z_SCORES, abs=1e-10
    )


@pytest.mark.parametrize("kind", ["zscore", "group"])
def test_a_constant_source_contributes_nothing_and_a_missing_score_moves_nothing(kind: str) -> None:
    rewards = columns([3.0] * 5, [*SCORES, NAN])
    scaled = normalizer(kind, ["a", "b"]).scaled(rewards, groups(5), update=True)
    assert scaled[:, 0].tolist() == [0.0] * 5
    assert scaled[:4, 1].tolist() == pytest.approx(Z_SCORES, abs=1e-10)
    assert scaled[4, 1].isnan()


def test_no_z_score_exceeds_three() -> None:
    scaled = RunningZScore(["a"]).scaled(columns([0.0] * 99 + [1.0]), groups(100), update=True)
    assert scaled.max() == 3.0, "it would be 9.9"


def test_within_a_group_the_largest_z_score_is_bounded_by_its_size() -> None:
    """Where a leave-one-out scale would divide by zero."""
    scaled = GroupZScore().scaled(columns([1.0, 0.0, 0.0, 0.0]), groups(4), True)
    assert scaled[:, 0].tolist() == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])


def test_a_batch_is_scaled_by_what_came_before_it() -> None:
    running = RunningZScore(["a"])
    running.scaled(columns(SCORES), groups(4), update=True)
    evaluated = running.scaled(columns([10.0]), groups(1), update=False)
    scaled = running.scaled(columns([0.5, 0.9]), groups(2), update=True)
    assert scaled[:, 0].tolist() == pytest.approx([Z_SCORES[3], Z_SCORES[2]])
    assert evaluated.item() == 3.0
    third = running.scaled(columns([0.5]), groups(1), update=True)
    every = torch.tensor([*SCORES, 0.5, 0.9], dtype=torch.float64)
    assert third.item() == pytest.approx(((0.5 - every.mean()) / every.std(correction=0)).item())


def test_moments_of_parts_are_those_of_the_whole() -> None:
    chance = random.Random(7)
    values = torch.tensor([chance.gauss(1e6, 1.0) for _ in range(1000)], dtype=torch.float64)
    merged = Moments()
    for part in values.split(77):
        merged = merged.merged(Moments.of(part))
    assert merged.count == 1000
    assert merged.mean == pytest.approx(values.mean().item(), rel=1e-12)
    assert merged.std == pytest.approx(values.std(correction=0).item(), rel=1e-8)
    assert Moments().merged(Moments()) == Moments()


def test_statistics_survive_a_checkpoint_and_begin_anew_for_a_changed_source() -> None:
    one, other = RunningZScore(["a", "b"]), RunningZScore(["a", "b"])
    one.scaled(columns(SCORES, SCORES), groups(4), update=True)
    other.load_state(json.loads(json.dumps(one.state())))
    assert other.state() == one.state()
    other.restart(["b"])
    later = columns([10.0, 20.0], [10.0, 20.0])
    scaled = other.scaled(later, groups(2), update=True)
    assert scaled[:, 0].tolist() == [3.0, 3.0], "far from what was"
    assert scaled[:, 1].tolist() == [-1.0, 1.0], "by its own batch, as the first one"


# --- ensembles ----------------------------------------------------------------------------------------------------


def test_the_vectors_of_the_ensembles() -> None:
    assert Mean().reduced(MEMBERS).tolist() == pytest.approx([1.0, 0.2, -0.5])
    assert WorstCase().reduced(MEMBERS).tolist() == pytest.approx([0.8, -0.2, -0.6])
    assert UncertaintyWeighted(0.5).reduced(MEMBERS).tolist() == pytest.approx(
        [0.9866666667, 0.1466666667, -0.5033333333]
    )
    assert disagreement(MEMBERS).std == pytest.approx((0.1633 + 0.3266 + 0.0816) / 3, abs=1e-4)


@pytest.mark.parametrize("ensemble", [Mean(), WorstCase(), UncertaintyWeighted(2.0)])
def test_the_order_of_the_members_means_nothing_and_a_missing_one_is_left_out(ensemble: Mean) -> None:
    turned = MEMBERS[:, [2, 0, 1]]
    assert ensemble.reduced(turned).tolist() == pytest.approx(ensemble.reduced(MEMBERS).tolist())
    some = torch.cat([MEMBERS, torch.full((3, 1), NAN)], dim=1)
    assert ensemble.reduced(some).tolist() == pytest.approx(ensemble.reduced(MEMBERS).tolist())
    assert ensemble.reduced(torch.full((1, 2), NAN)).isnan().all()


def test_equal_members_agree() -> None:
    same = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    assert (disagreement(same).std, disagreement(same).spearman) == pytest.approx((0.0, 1.0))
    assert WorstCase().reduced(same).equal(Mean().reduced(same))
    against = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert disagreement(against).spearman == pytest.approx(-1.0)
    assert math.isnan(disagreement(same[:, :1]).std)


@pytest.mark.parametrize("text", ["", "max", "uwo:", "uwo:-1", "uwo:inf", "mean:1", "wco:2"])
def test_another_ensemble_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--reward_ensemble got .*such as uwo:0\.5$"):
        parse_ensemble(text)
    assert parse_ensemble("uwo:0.25") == UncertaintyWeighted(0.25)
    assert parse_ensemble("none") is None


# --- all of it ----------------------------------------------------------------------------------------------------


def test_without_more_it_is_the_weighted_sum() -> None:
    rewards = torch.tensor([[1.0, NAN], [0.5, 2.0], [NAN, NAN]])
    weights = torch.tensor([1.0, 0.5])
    combined = RewardCombiner(["a", "b"], weights).combine(rewards, groups(3))
    plain = combine_rewards(rewards, weights)
    assert combined.rewards_B.equal(plain.rewards_B)
    assert combined.rewards_B.dtype == torch.float32
    assert combined.valid_B.tolist() == [True, True, False]


def test_sources_of_different_scales_weigh_the_same_after_normalization() -> None:
    judge = [9.0, 2.0, 5.0, 4.0]
    rules = [0.0, 1.0, 1.0, 0.0]
    rewards = columns(judge, rules)
    plain = RewardCombiner(["judge", "rules"], torch.ones(2)).combine(rewards, groups(4))
    scaled = RewardCombiner(["judge", "rules"], torch.ones(2), GroupZScore()).combine(rewards, groups(4))
    assert plain.shares["judge"] > 0.99
    assert scaled.shares["judge"] == pytest.approx(0.5)
    for combined in (plain, scaled):
        assert sum(combined.shares.values()) == pytest.approx(1.0)
    assert scaled.min_correlation == pytest.approx(torch.corrcoef(rewards.T)[0, 1].item())


def test_shares_sum_to_one_where_a_source_is_missing_too() -> None:
    rewards = columns([1.0, 2.0, NAN, 5.0], [2.0, NAN, 1.0, 0.0])
    combined = RewardCombiner(["a", "b"], torch.tensor([1.0, 3.0])).combine(rewards, groups(4))
    assert sum(combined.shares.values()) == pytest.approx(1.0)
    flat = RewardCombiner(["a", "b"], torch.ones(2)).combine(columns([1.0, 1.0], [2.0, 2.0]), groups(2))
    assert (flat.shares, math.isnan(flat.min_correlation)) == ({}, True)


def test_an_ensemble_is_one_objective_beside_the_others() -> None:
    rewards = torch.cat([columns([0.0, 1.0, 0.0]), MEMBERS], dim=1)
    combiner = RewardCombiner(
        ["rules", "m1", "m2", "m3"], torch.tensor([1.0, 2.0, 2.0, 2.0]), None, WorstCase(), [1, 2, 3]
    )
    combined = combiner.combine(rewards, groups(3))
    assert combined.rewards_B.tolist() == pytest.approx([1.6, 0.6, -1.2])
    assert set(combined.shares) == {"rules", "ensemble"}
    assert combined.members == disagreement(MEMBERS)


def test_what_an_ensemble_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs at least two reward models, and there are 1"):
        RewardCombiner(["m"], torch.ones(1), None, Mean(), [0])
    with pytest.raises(ConfigError, match=r"an ensemble has one weight: give them the same$"):
        RewardCombiner(["m", "n"], torch.tensor([1.0, 2.0]), None, Mean(), [0, 1])
    with pytest.raises(RewardError, match="it must be finite"):
        RewardCombiner(["m"], torch.ones(1)).combine(columns([math.inf]), groups(1))
