"""Settings of the objectives as a user writes them."""

from __future__ import annotations

import pytest
import torch

from swift_rlx.algorithms.offline import (
    AWAC,
    CQL,
    ExponentialAlpha,
    SoftmaxCE,
    SoftmaxCEForwardKL,
    reward_alone,
)
from swift_rlx.algorithms.offline.objective_settings import needs_groups, objective_with, parse_settings
from swift_rlx.errors import ConfigError


def test_settings_are_a_json_object_and_nothing_is_none():
    assert parse_settings(None) == {}
    assert parse_settings('{"tau": 0.5}') == {"tau": 0.5}
    for text in ("tau=0.5", "[1]", "0.5"):
        with pytest.raises(ConfigError, match="is a JSON object of settings by name"):
            parse_settings(text)


def test_each_setting_reaches_its_field():
    assert objective_with(
        "softmax_ce", {"tau": 2, "length_norm": True, "skip_uninformative": False}, 0.1
    ) == (SoftmaxCE(tau=2.0, beta=0.1, length_norm=True, skip_uninformative=False))
    assert objective_with("softmax_ce_forward_kl", {"tau": 0.5}, 0.0) == SoftmaxCEForwardKL(tau=0.5, beta=0.0)
    awac = objective_with("awac", {"advantages": "reward", "floor": 0.2, "low_share": 0.1}, 0.0)
    assert isinstance(awac, AWAC)
    assert (awac.advantages, awac.floor, awac.min_low_share) == (reward_alone, 0.2, 0.1)
    alpha = {"start": 2.0, "end": 0.5, "until": 0.5, "schedule": "exponential"}
    cql = objective_with("cql", {"alpha": alpha, "gamma": 0.9, "q_scale": 3, "td_from": 0}, 0.0)
    assert isinstance(cql, CQL)
    assert (cql.alpha, cql.gamma, cql.q_scale, cql.td_from) == (
        ExponentialAlpha(2.0, 0.5, 0.5),
        0.9,
        3.0,
        0.0,
    )


def test_a_temperature_that_is_given_stays_whatever_the_weights():
    awac = objective_with("awac", {"temperature": 0.01}, 0.0)
    assert awac.temperature.update(torch.tensor([1.0, 0.0, -5.0])) == 0.01
    assert objective_with("awac", {}, 0.0).temperature.update(torch.tensor([0.1, 0.0, 0.05])) != 1.0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("awac", {"tau": 1}, "the setting 'tau' of --offline_objective awac is refused: it has temperature,"),
        ("awac", {"temperature": 0}, "it is a number above 0"),
        ("awac", {"temperature": True}, "it is a number above 0"),
        ("awac", {"advantages": "value"}, 'it is "group"'),
        ("awac", {"low_share": 1}, "from 0 to 0.99"),
        ("softmax_ce", {"length_norm": 1}, "it is true or false"),
        ("cql", {"alpha": 1.0}, "it is an object of"),
        ("cql", {"alpha": {"start": 0}}, "it is an object of"),
        ("cql", {"alpha": {"schedule": "cosine"}}, "it is an object of"),
        ("rloo_is", {"cap": 3}, "it has none besides the flags"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        objective_with(name, settings, 0.0)


def test_a_kl_is_refused_where_there_is_none():
    with pytest.raises(
        ConfigError, match=r"--beta 0\.1 is refused for --offline_objective cql, which has no KL"
    ):
        objective_with("cql", {}, 0.1)


def test_one_completion_a_prompt_teaches_only_what_compares_nothing():
    assert not needs_groups("cql", {})
    assert not needs_groups("awac", {"advantages": "reward"})
    assert needs_groups("awac", {})
    assert needs_groups("rloo_is", {})
