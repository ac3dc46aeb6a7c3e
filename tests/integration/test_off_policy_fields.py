"""The arguments of the off-policy correction: what `auto` stands for, and what is refused."""

import math
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.integration.off_policy_fields import (
    FIELD_DEFAULTS,
    OffPolicyFields,
    resolve_correction,
    resolve_off_policy,
)


@pytest.mark.parametrize(
    ("name", "algorithm", "length", "mode"),
    [
        ("auto", "rloo", 256, "sequence_product"),
        ("auto", "rloo", 257, "token_truncate"),
        ("auto", "reinforce_pp", 16, "token_truncate"),
        ("auto", "reinforce_pp_baseline", 16, "token_truncate"),
        ("none", "rloo", 16, "none"),
        ("prefix_product", "rloo", 16, "prefix_product"),
    ],
)
def test_auto_stands_for_the_rule_of_the_algorithm(name: str, algorithm: str, length: int, mode: str) -> None:
    assert resolve_correction(name, algorithm, length) == mode


def given(**changes: Any) -> SimpleNamespace:
    stock = {
        "async_rollout": True,
        "rlx_offline": None,
        "max_completion_length": 64,
        "off_policy_sequence_mask_delta": None,
    }
    return SimpleNamespace(**(FIELD_DEFAULTS | stock | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"off_policy_cap": 0.9}, "--off_policy_cap 0.9 is refused"),
        ({"off_policy_cap": math.inf}, "--off_policy_cap inf is refused"),
        ({"off_policy_k3_max": 0.0}, "--off_policy_k3_max 0 is refused"),
        ({"off_policy_sequence_mask_delta": -1.0}, "--off_policy_sequence_mask_delta -1 is refused"),
        ({"off_policy_correction": "none", "off_policy_cap": 3.0}, "--off_policy_cap 3 has no effect"),
        ({"off_policy_correction": "two_sided_mask", "off_policy_cap": 3.0}, "has no effect"),
        ({"async_rollout": False, "ess_gate": True}, "--ess_gate true has no effect without the async"),
        ({"async_rollout": False, "off_policy_correction": "none"}, "--off_policy_correction none has no"),
        (
            {"async_rollout": False, "off_policy_sequence_mask_delta": 0.5},
            "--off_policy_sequence_mask_delta 0.5 has no effect",
        ),
    ],
)
def test_a_field_that_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_off_policy(given(**changes), "rloo")


def test_the_fields_as_they_are_by_default_and_in_use_are_accepted() -> None:
    values = given()
    resolve_off_policy(values, "rloo")
    assert values.off_policy_correction == "sequence_product"
    resolve_off_policy(values, "rloo")  # what was resolved stays
    resolve_off_policy(given(async_rollout=False), "rloo")
    every = given(off_policy_cap=3.0, off_policy_k3_max=0.05, off_policy_sequence_mask_delta=0.5)
    resolve_off_policy(every, "reinforce_pp")
    assert set(FIELD_DEFAULTS) == {field.name for field in fields(OffPolicyFields)}
