"""Wrong shapes and dtypes are refused with the shapes in the sentence, never broadcast."""

import pytest
import torch

from swift_rlx.algorithms import (
    EMABaseline,
    group_centered,
    k1,
    k2,
    k3,
    loo_advantages,
    masked_whiten,
    reverse_returns,
    sequence_kl,
    sequence_ppo_loss,
    token_ppo_loss,
    token_rewards,
)

B, T = 3, 2
ROWS, ROW_MASK = torch.zeros(B), torch.ones(B, dtype=torch.bool)
TOKENS, MASK = torch.zeros(B, T), torch.ones(B, T, dtype=torch.bool)
IDS = torch.zeros(B, dtype=torch.int64)

CALLS = {
    "loo_advantages": (loo_advantages, [ROWS, IDS, ROW_MASK]),
    "group_centered": (group_centered, [ROWS, IDS, ROW_MASK]),
    "EMABaseline": (EMABaseline(0.9).advantages, [ROWS, ROW_MASK]),
    "k1": (k1, [TOKENS, TOKENS, MASK]),
    "k2": (k2, [TOKENS, TOKENS, MASK]),
    "k3": (k3, [TOKENS, TOKENS, MASK]),
    "sequence_kl": (sequence_kl, [TOKENS, TOKENS, MASK]),
    "token_rewards": (lambda r, kl, m: token_rewards(r, kl, m, 0.1), [ROWS, TOKENS, MASK]),
    "reverse_returns": (lambda r, m: reverse_returns(r, m, 1.0), [TOKENS, MASK]),
    "masked_moments": (masked_whiten, [TOKENS, MASK]),
    "sequence_ppo_loss": (
        lambda a, b, c, m: sequence_ppo_loss(a, b, c, m, 0.2, 0.2),
        [TOKENS, TOKENS, ROWS, MASK],
    ),
    "token_ppo_loss": (
        lambda a, b, c, m: token_ppo_loss(a, b, c, m, 0.2, 0.2),
        [TOKENS, TOKENS, TOKENS, MASK],
    ),
}
POSITIONS = [(name, i) for name, (_, arguments) in CALLS.items() for i in range(len(arguments))]


def refused(name, arguments, match):
    function, _ = CALLS[name]
    with pytest.raises(ValueError, match=rf"^{name} takes .*{match}"):
        function(*arguments)


def changed(name, position, change):
    arguments = list(CALLS[name][1])
    arguments[position] = change(arguments[position])
    return arguments


@pytest.mark.parametrize("name", CALLS)
def test_right_inputs_are_accepted(name):
    function, arguments = CALLS[name]
    function(*arguments)


@pytest.mark.parametrize(("name", "position"), POSITIONS)
def test_one_row_that_would_broadcast_is_refused(name, position):
    refused(name, changed(name, position, lambda x: x[:1]), r"\(1,")


@pytest.mark.parametrize(("name", "position"), POSITIONS)
def test_extra_dimension_is_refused(name, position):
    refused(name, changed(name, position, lambda x: x[..., None]), r", 1\)")


@pytest.mark.parametrize("name", CALLS)
def test_wrong_rank_of_all_inputs_is_refused(name):
    refused(name, [x[None] for x in CALLS[name][1]], r"\(1, 3")


@pytest.mark.parametrize("name", CALLS)
def test_integer_mask_is_refused(name):
    refused(name, changed(name, -1, lambda x: x.long()), r"got torch\.int64; use \.bool\(\)")


@pytest.mark.parametrize("name", CALLS)
def test_integer_values_are_refused(name):
    refused(name, changed(name, 0, lambda x: x.long()), r"floating-point tensor as \w+, got torch\.int64")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_group_ids_that_are_not_integers_are_refused(dtype):
    refused("loo_advantages", [ROWS, IDS.to(dtype), ROW_MASK], "integers as group_ids_B")


def test_group_ids_of_another_length_are_named():
    refused("loo_advantages", [ROWS, IDS[:2], ROW_MASK], r"got group_ids_B \(2,\), rewards_B \(3,\)")
