"""The off-policy correction in the trainers, without a training: losses of small tensors, metrics, the gate."""

import logging
import math
from collections import defaultdict
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_rlx.algorithms import BUCKET_EDGES, CORRECTIONS
from swift_rlx.trainers import off_policy
from swift_rlx.trainers.batch import RLXBatch
from swift_rlx.trainers.off_policy import OffPolicyMixin, OffPolicyOptions, buckets_within, per_token
from swift_rlx.trainers.reinforce_pp import ReinforcePPTrainer
from swift_rlx.trainers.rloo import RLOOTrainer

B, T = 6, 5
CLIP = SimpleNamespace(epsilon_low=0.2, epsilon_high=0.2)
TRAINERS = pytest.mark.parametrize("trainer", [RLOOTrainer, ReinforcePPTrainer])


class _Trainer:
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.logged = {name: values[-1] for name, values in self._metrics["train"].items()}


class Stub(OffPolicyMixin, _Trainer):
    """The mixin without a training."""

    def __init__(self, mode: str = "token_truncate", **options: Any) -> None:
        self.off_policy = OffPolicyOptions(mode, **options)
        self.model, self.args = SimpleNamespace(training=True), SimpleNamespace(max_staleness=8)
        self._metrics: dict[str, Any] = {"train": defaultdict(list)}
        self.refreshed = 0
        self._prepare_off_policy()

    def refresh_rollouts(self) -> None:
        self.refreshed += 1


def batch(proximal: torch.Tensor, drift: torch.Tensor | float, **changes: Any) -> RLXBatch:
    """Completions that a policy sampled whose log-probs are `drift` lower; one advantage a row, unequal lengths."""
    draw = torch.Generator().manual_seed(1)
    mask = torch.arange(T) < torch.randint(2, T + 1, (B, 1), generator=draw)
    made = RLXBatch(**{field.name: None for field in fields(RLXBatch)})
    made.completion_mask, made.loss_mask = mask.long(), mask
    made.advantages = torch.randn(B, 1, generator=draw).expand(B, T)
    made.old_per_token_logps = proximal
    made.behavior_logprobs = (proximal - drift).where(mask, 0.0)
    made.staleness = torch.zeros(B, T, dtype=torch.long)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def proximal() -> torch.Tensor:
    return torch.randn(B, T, generator=torch.Generator().manual_seed(0)) - 3


@pytest.fixture
def drift() -> torch.Tensor:
    return torch.randn(B, T, generator=torch.Generator().manual_seed(2))


def loss_and_gradient(
    trainer: type, current: torch.Tensor, made: RLXBatch, weights: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    current = current.clone().requires_grad_()
    total = trainer.policy_loss(CLIP, current, made.old_per_token_logps, made, weights).total
    total.backward()
    return total.detach(), current.grad


# --- weights in the losses -------------------------------------------------------------------------------------------


@TRAINERS
@pytest.mark.parametrize("mode", CORRECTIONS)
def test_samples_of_the_policy_itself_train_to_the_last_bit_as_without_a_correction(
    trainer: type, mode: str, proximal: torch.Tensor
) -> None:
    made = batch(proximal, 0.0)
    current = proximal + 0.3 * torch.randn(B, T)
    weights = Stub(mode).correct(current, proximal, made)
    corrected = loss_and_gradient(trainer, current, made, weights)
    plain = loss_and_gradient(trainer, current, made, None)
    assert corrected[0].equal(plain[0])
    assert corrected[1].equal(plain[1])


@TRAINERS
@pytest.mark.parametrize("mode", CORRECTIONS)
def test_where_the_policy_has_not_moved_each_tokens_gradient_is_weighted(
    trainer: type, mode: str, proximal: torch.Tensor, drift: torch.Tensor
) -> None:
    made = batch(proximal, drift)
    weights = Stub(mode).correct(proximal, proximal, made)
    _, gradient = loss_and_gradient(trainer, proximal, made, weights)
    expected = -(made.advantages * per_token(weights)).where(made.loss_mask, 0.0)
    torch.testing.assert_close(gradient, expected)
    if mode != "none":
        assert not gradient.equal(loss_and_gradient(trainer, proximal, made, None)[1])


@TRAINERS
def test_what_stands_where_no_token_trains_is_not_read(trainer: type, proximal: torch.Tensor) -> None:
    made = batch(proximal, 0.0)
    made.loss_mask = made.loss_mask.clone()
    made.loss_mask[0] = False
    expected = loss_and_gradient(trainer, proximal, made, None)
    found = loss_and_gradient(trainer, proximal.where(made.loss_mask, math.nan), made, None)
    assert found[0].equal(expected[0])
    assert found[1].equal(expected[1])
    assert not expected[1][~made.loss_mask].any()


def test_a_batch_of_which_nothing_trains_has_a_gradient_of_zero(proximal: torch.Tensor) -> None:
    made = batch(proximal, 0.0)
    made.loss_mask = torch.zeros_like(made.loss_mask)
    for trainer in (RLOOTrainer, ReinforcePPTrainer):
        loss, gradient = loss_and_gradient(trainer, proximal, made, None)
        assert loss == 0
        assert not gradient.any()


def test_no_gradient_flows_into_the_weights(proximal: torch.Tensor, drift: torch.Tensor) -> None:
    current = proximal.clone().requires_grad_()
    filters: dict[str, Any] = {"sequence_mask_delta": 0.1, "k3_max": 0.5}
    for mode in CORRECTIONS:
        weights = Stub(mode, **filters).correct(current, current, batch(proximal, drift))
        assert not weights.requires_grad


def test_a_batch_that_the_policy_sampled_has_no_weights(proximal: torch.Tensor) -> None:
    stub = Stub()
    assert stub.correct(proximal, proximal, batch(proximal, 0.0, behavior_logprobs=None)) is None
    stub.log({})
    assert stub.logged == {}


def test_tokens_over_age_are_part_of_their_completions_product(
    proximal: torch.Tensor, drift: torch.Tensor
) -> None:
    made = batch(proximal, drift)
    whole = Stub("sequence_product").correct(proximal, proximal, made)
    made.loss_mask = made.loss_mask.clone()
    made.loss_mask[:, 0] = False
    assert Stub("sequence_product").correct(proximal, proximal, made).equal(whole)
    made.loss_mask[2] = False
    assert Stub("sequence_product").correct(proximal, proximal, made)[2] == 1


# --- filters ---------------------------------------------------------------------------------------------------------


@TRAINERS
@pytest.mark.parametrize("mode", ["none", "token_truncate", "sequence_product"])
def test_a_dropped_completion_trains_nothing(trainer: type, mode: str, proximal: torch.Tensor) -> None:
    drift = torch.zeros(B, T)
    drift[1], drift[4] = 1.0, -1.0
    made = batch(proximal, drift)
    weights = Stub(mode, k3_max=0.05).correct(proximal, proximal, made)
    _, gradient = loss_and_gradient(trainer, proximal, made, weights)
    assert [bool(row.any()) for row in gradient] == [True, False, True, True, False, True]


def test_the_sequence_mask_drops_bad_completions_that_the_policy_has_left(proximal: torch.Tensor) -> None:
    made = batch(proximal, -1.0)  # the policy now gives them less
    kept = Stub("none", sequence_mask_delta=0.5).correct(proximal, proximal, made)
    assert kept.bool().equal(made.advantages[:, 0] > 0)
    assert 0 < kept.sum() < B
    assert Stub("none", sequence_mask_delta=1.5).correct(proximal, proximal, made).all()


def test_the_share_of_dropped_completions_is_logged(proximal: torch.Tensor) -> None:
    drift = torch.zeros(B, T)
    drift[:2] = 1.0
    stub = Stub(k3_max=0.05)
    stub.correct(proximal, proximal, batch(proximal, drift))
    stub.log({})
    assert stub.logged["offpolicy/rows_dropped"] == pytest.approx(2 / B)


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_the_log_line_is_about_all_micro_batches_since_the_last_one(
    proximal: torch.Tensor, drift: torch.Tensor
) -> None:
    staleness = torch.zeros(B, T, dtype=torch.long)
    staleness[:, -2:] = 3
    stub, whole = Stub(), Stub()
    made = batch(proximal, drift, staleness=staleness)
    whole.correct(proximal, proximal, made)
    for rows in (slice(0, 2), slice(2, B)):
        part = batch(proximal, drift)
        for field in fields(RLXBatch):
            value = getattr(made, field.name)
            setattr(part, field.name, value if value is None else value[rows])
        stub.correct(proximal[rows], proximal[rows], part)
    stub.log({})
    whole.log({})
    assert stub.logged == pytest.approx(whole.logged)
    log_ratio = drift[made.loss_mask].double()
    ratio = log_ratio.exp()
    expected = {
        "offpolicy/ess_token": (ratio.sum() ** 2 / (len(ratio) * ratio.square().sum())).item(),
        "offpolicy/kl_k3": (ratio - 1 - log_ratio).mean().item(),
        "offpolicy/max_log_ratio": log_ratio.abs().max().item(),
        "offpolicy/clipped_high": (log_ratio > math.log(2)).double().mean().item(),
        "offpolicy/staleness_3-4/share": (staleness[made.loss_mask] == 3).double().mean().item(),
        "offpolicy/staleness_5-8/share": 0.0,
    }
    assert {name: stub.logged[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert {"offpolicy/positive/ess_token", "offpolicy/negative/kl_k3"} <= stub.logged.keys()
    stub.logged = {}
    stub._metrics["train"].clear()
    stub.log({})
    assert stub.logged == {}


def test_every_rank_sends_its_sums_once_a_log_line_however_many_micro_batches(
    proximal: torch.Tensor, drift: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def gather(values: list[Any]) -> list[Any]:
        sent.append(values)
        return values * 2  # the other rank has the same

    monkeypatch.setattr(off_policy, "gather_object", gather)
    stub, alone = Stub(), Stub()
    for _ in range(4):
        stub.correct(proximal, proximal, batch(proximal, drift))
    assert not sent
    stub.log({})
    assert len(sent) == 1
    stub.log({})  # a rank without rows since then still takes part
    assert len(sent) == 2
    monkeypatch.undo()
    alone.correct(proximal, proximal, batch(proximal, drift))
    alone.log({})
    assert stub.logged == pytest.approx(alone.logged)


def test_an_evaluation_measures_nothing(proximal: torch.Tensor, drift: torch.Tensor) -> None:
    stub = Stub()
    stub.model.training = False
    assert stub.correct(proximal, proximal, batch(proximal, drift)) is not None
    stub.model.training = True
    stub.log({})
    assert stub.logged == {}


def test_a_policy_far_off_is_warned_about_once_until_it_is_near_again(
    proximal: torch.Tensor, drift: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    off_policy.logger.addHandler(caplog.handler)
    stub = Stub()
    try:
        for amount in (0.01, 1.0, 1.0, 0.01, 1.0):
            stub.correct(proximal, proximal, batch(proximal, amount * drift))
            stub.log({})
    finally:
        off_policy.logger.removeHandler(caplog.handler)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert "effective sample size" in warned[0].getMessage()


# --- gate ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "amount", "is_skipped"),
    [
        ("token_truncate", 0.5, False),
        ("token_truncate", 2.0, True),
        ("none", 2.0, True),
        ("sequence_product", 2.0, False),  # of 6 completions at least one counts, a share above 0.1
        ("prefix_product", 2.0, False),
    ],
)
def test_the_gate_looks_at_the_weights_in_use(
    mode: str, amount: float, is_skipped: bool, proximal: torch.Tensor, drift: torch.Tensor
) -> None:
    stub = Stub(mode, ess_gate=True)
    made = batch(proximal, amount * drift)
    stub.gate([made])
    assert stub.refreshed == is_skipped
    assert made.loss_mask.any() != is_skipped
    assert stub._metrics["train"]["offpolicy/batches_skipped"] == [float(is_skipped)]


def test_the_gate_skips_products_of_which_one_completion_has_all_the_weight(proximal: torch.Tensor) -> None:
    """12 completions in two micro-batches; one share of 12 is below 0.1, though each micro-batch has 1 of 6."""
    drift = torch.zeros(B, T)
    drift[0] = 10.0
    micro_batches = [batch(proximal, drift), batch(proximal, 0.0)]
    stub = Stub("sequence_product", ess_gate=True)
    stub.gate(micro_batches)
    assert stub.refreshed == 1
    assert not any(made.loss_mask.any() for made in micro_batches)


@TRAINERS
def test_a_skipped_batch_has_loss_and_gradient_zero_and_is_in_the_metrics(
    trainer: type, proximal: torch.Tensor, drift: torch.Tensor
) -> None:
    stub, made = Stub(ess_gate=True), batch(proximal, 2 * drift)
    normalizer = made.normalizer = torch.tensor(7)
    stub.gate([made])
    loss, gradient = loss_and_gradient(trainer, proximal, made, stub.correct(proximal, proximal, made))
    assert loss == 0
    assert not gradient.any()
    assert made.normalizer is normalizer
    stub.log({})
    assert stub.logged["offpolicy/ess_token"] < 0.5


@pytest.mark.parametrize("mine_is_far_off", [True, False])
def test_all_ranks_decide_by_the_samples_of_all(
    mine_is_far_off: bool, proximal: torch.Tensor, drift: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine ranks near the policy outvote one far from it, also on that one."""
    near, far = Stub(), Stub()
    near.correct(proximal, proximal, batch(proximal, 0.0))
    far.correct(proximal, proximal, batch(proximal, 2 * drift - 5))
    states = [far._off_policy_meter.state.tolist()] + [near._off_policy_meter.state.tolist()] * 9
    monkeypatch.setattr(off_policy, "gather_object", lambda mine: states)
    stub = Stub(ess_gate=True)
    made = batch(proximal, 2 * drift - 5 if mine_is_far_off else 0.0)
    stub.gate([made])
    assert made.loss_mask.any()
    assert not stub.refreshed


def test_without_the_flag_or_in_an_evaluation_nothing_is_skipped(
    proximal: torch.Tensor, drift: torch.Tensor
) -> None:
    off, evaluating = Stub(ess_gate=False), Stub(ess_gate=True)
    evaluating.model.training = False
    for stub in (off, evaluating):
        made = batch(proximal, 3 * drift)
        stub.gate([made])
        assert made.loss_mask.any()
        assert not stub._metrics["train"]


@pytest.mark.parametrize(
    ("bound", "names"),
    [(1, ["0", "1"]), (2, ["0", "1", "2"]), (3, ["0", "1", "2", "3-4"]), (9, list(BUCKET_EDGES))],
)
def test_only_buckets_that_the_bound_allows_are_logged(bound: int, names: list[str]) -> None:
    assert buckets_within(bound) == names
