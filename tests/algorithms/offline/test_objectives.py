"""What holds for every offline objective, and how one gets one by name."""

import dataclasses
import json

import pytest
import torch
from offline_batches import F64, StoredBatch

from swift_rlx.algorithms.offline import AWAC, OBJECTIVES, make_objective, resolve_auto
from swift_rlx.errors import ConfigError

WAYS = [(name, {}) for name in OBJECTIVES] + [
    ("rloo_is", {"correction": "token_truncate"}),
    ("awac", {"beta": 0.05, "length_norm": True}),
    ("softmax_ce", {"length_norm": True, "tau": 0.3}),
    ("cql", {"q_scale": 0.7, "gamma": 0.9}),
]
ALL = pytest.mark.parametrize(("name", "settings"), WAYS, ids=str)


def gradient(batch, plan, rows=None):
    """Of the loss of some rows with respect to the logits of all, and the loss."""
    logits = batch.logits.clone().requires_grad_()
    loss = plan.loss(batch.part(logits, rows)).loss
    loss.backward()
    return logits.grad, loss.detach()


@ALL
def test_micro_batches_of_any_size_sum_to_the_whole(name, settings):
    batch = StoredBatch()
    plan = make_objective(name, **settings).plan(batch.rows)
    whole, loss = gradient(batch, plan)
    assert whole.abs().sum() > 0
    parts = [gradient(batch, plan, rows) for rows in torch.randperm(10).split([1, 4, 2, 3])]
    torch.testing.assert_close(sum(part for part, _ in parts), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(sum(part for _, part in parts), loss, rtol=0, atol=1e-12)


@ALL
def test_masked_tokens_and_invalid_rows_get_no_gradient(name, settings):
    batch = StoredBatch()
    rows = dataclasses.replace(batch.rows)
    rows.rewards_B[4] = torch.nan
    rows.scores_BF[4] = torch.nan
    grad, loss = gradient(batch, make_objective(name, **settings).plan(rows))
    assert loss.isfinite()
    assert grad.isfinite().all()
    assert (grad[~(batch.mask & rows.valid_B[:, None])] == 0).all()


@ALL
def test_the_order_of_rows_changes_nothing(name, settings):
    batch, order = StoredBatch(), torch.randperm(10)
    expected, _ = gradient(batch, make_objective(name, **settings).plan(batch.rows))
    rows = batch.rows
    for field in ("group_ids_B", "tokens_B", "valid_B", "rewards_B", "scores_BF"):
        rows = dataclasses.replace(rows, **{field: getattr(rows, field)[order]})
    logits = batch.logits.clone().requires_grad_()
    part = dataclasses.replace(batch.part(logits, order), rows_b=torch.arange(10))
    make_objective(name, **settings).plan(rows).loss(part).loss.backward()
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-12)


@ALL
def test_the_gradient_is_that_of_the_loss(name, settings):
    """By finite differences; what is taken without gradient (proximal log-probs) is held fixed."""
    batch = StoredBatch()
    plan = make_objective(name, **settings).plan(batch.rows)
    fixed = batch.part(batch.logits)

    def loss(logits):
        part = dataclasses.replace(
            batch.part(logits),
            proximal_logprobs_bT=fixed.logprobs_bT,
            behavior_logprobs_bT=fixed.behavior_logprobs_bT,
        )
        return plan.loss(part).loss

    assert torch.autograd.gradcheck(loss, batch.logits.clone().requires_grad_())


@ALL
def test_a_batch_without_a_valid_row_is_a_zero_that_reaches_the_model(name, settings):
    batch = StoredBatch()
    rows = dataclasses.replace(batch.rows, valid_B=torch.zeros(10, dtype=torch.bool))
    grad, loss = gradient(batch, make_objective(name, **settings).plan(rows))
    assert loss == 0
    assert (grad == 0).all()


@ALL
def test_what_it_needs_and_does_not_get_is_named(name, settings):
    batch = StoredBatch()
    objective = make_objective(name, **settings)
    needs = objective.needs
    words = {"rewards_B": ("rewards", needs.rewards), "scores_BF": ("scores", needs.pairwise)}
    for field, (word, is_needed) in words.items():
        rows = dataclasses.replace(batch.rows, **{field: None})
        if is_needed:
            with pytest.raises(ValueError, match=f"{name} needs {word}.*, which this batch does not have"):
                objective.plan(rows)
        else:
            objective.plan(rows)
    plan, part = objective.plan(batch.rows), batch.part(batch.logits)
    fields = {
        "behavior_logprobs_bT": needs.behavior_logprobs,
        "logits_bTV": needs.logits,
        "reference_logits_bTV": needs.reference,
        "target_logits_bTV": needs.target,
    }
    for field, is_needed in fields.items():
        lacking = dataclasses.replace(part, **{field: None})
        if is_needed:
            with pytest.raises(ValueError, match=f"{name} needs log"):
                plan.loss(lacking)
        else:
            plan.loss(lacking)


@ALL
def test_its_state_is_plain_numbers(name, settings):
    objective = make_objective(name, **settings)
    objective.plan(StoredBatch(seed=3).rows)
    state = json.loads(json.dumps(objective.state()))
    again = make_objective(name, **settings)
    again.load_state(state)
    assert again.state() == objective.state()


def test_awac_goes_on_with_its_temperature():
    objective = AWAC()
    objective.temperature.value = 50.0
    objective.plan(StoredBatch().rows)
    assert objective.state()["temperature"] != 50.0
    again = AWAC()
    again.load_state(objective.state())
    rows = StoredBatch(seed=1).rows
    torch.testing.assert_close(again.plan(rows).weights_B, objective.plan(rows).weights_B, rtol=0, atol=0)


def test_plain_rloo_on_stored_data_is_refused_unless_forced():
    with pytest.raises(ConfigError, match=r"--offline_objective rloo is refused: .* use rloo_is, or awac"):
        make_objective("rloo")
    forced = make_objective("rloo", force=True)
    assert not forced.needs.behavior_logprobs
    batch = StoredBatch()
    grad, _ = gradient(batch, forced.plan(batch.rows))
    weighted, _ = gradient(batch, make_objective("rloo_is").plan(batch.rows))
    assert (grad - weighted).abs().max() > 0.01


def test_an_unknown_name_or_setting_is_refused():
    with pytest.raises(ConfigError, match=r"--offline_objective dpo is refused: .* rloo_is, softmax_ce"):
        make_objective("dpo")
    with pytest.raises(ConfigError, match="--offline_objective awac is refused with"):
        make_objective("awac", tau=1.0)
    with pytest.raises(ConfigError, match="q_scale above 0"):
        make_objective("cql", q_scale=0.0)


def test_auto_goes_by_what_is_stored():
    assert resolve_auto(has_rewards=True, has_behavior_logprobs=True) == "rloo_is"
    assert resolve_auto(has_rewards=True, has_behavior_logprobs=False) == "awac"
    with pytest.raises(ConfigError, match="no rewards; score them first"):
        resolve_auto(has_rewards=False, has_behavior_logprobs=True)


def test_float32_models_are_computed_in_float32():
    batch = StoredBatch()
    for name in OBJECTIVES:
        plan = make_objective(name).plan(batch.rows)
        logits = batch.logits.to(torch.bfloat16).requires_grad_()
        loss = plan.loss(batch.part(logits)).loss
        assert loss.dtype in (torch.float32, F64), name
