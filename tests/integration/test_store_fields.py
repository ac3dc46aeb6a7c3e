"""The arguments of training from a store: what follows from what, and what is refused."""

import math
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from answered_store import answered_store

from swift_rlx.algorithms.offline import OBJECTIVES
from swift_rlx.errors import ConfigError, StoreError
from swift_rlx.integration.store_fields import (
    FIELD_DEFAULTS,
    Objective,
    StoreFields,
    is_offline,
    is_store,
    resolve_store,
)
from swift_rlx.store import StoredGroup, TrajectoryStore
from swift_rlx.types import Completion, FinishReason, Prompt, Score, Trajectory, TrajectoryGroup


def given(**changes: Any) -> SimpleNamespace:
    stock = {"async_rollout": True, "off_policy_correction": "auto", "dataset": ["rows.jsonl"]}
    return SimpleNamespace(**FIELD_DEFAULTS | stock | changes)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with one group."""
    made = TrajectoryStore.create(tmp_path / "store")
    one = np.ones(1, np.int32)
    prompt = Prompt(0, one)
    answer = Completion(one, np.zeros(1, np.float32), one, FinishReason.STOP)
    members = tuple(Trajectory(prompt, member, answer, Score(float(member))) for member in range(2))
    with made.writer("test") as writer:
        writer.add([StoredGroup(TrajectoryGroup(prompt, 0, members))])
        writer.seal()
    return str(tmp_path / "store")


def test_the_objectives_are_those_of_the_algorithms() -> None:
    assert set(get_args(Objective)) == {"auto", "rloo", *OBJECTIVES}
    assert set(FIELD_DEFAULTS) == {field.name for field in fields(StoreFields)}


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [
        ({}, 0.0),
        ({"offline_ratio": 0.5}, 0.5),
        ({"online_every": 4}, 0.75),
        ({"online_every": 4, "offline_ratio": 0.75}, 0.75),
        ({"fill_the_wait": True, "max_reuse": 2}, 0.0),
        ({"offline_ratio": 0.5, "max_store_age": 9, "min_store_spread": 0.1, "min_store_reward": -1.0}, 0.5),
        ({"offline_ratio": 0.5, "offline_objective": "rloo_is"}, 0.5),
        (
            {"offline_ratio": 0.5, "offline_objective": "rloo", "off_policy_correction": "none"},
            0.5,
        ),
    ],
)
def test_a_run_with_fresh_batches_takes_its_ratio_from_either_flag(
    changes: dict[str, Any], ratio: float
) -> None:
    values = given(trajectory_store="new", **changes)
    resolve_store(values, "rloo")
    assert (values.offline_ratio, values.trajectory_store, is_offline(values)) == (ratio, "new", False)
    resolve_store(values, "rloo")  # what was resolved stays
    assert values.offline_ratio == ratio


def test_a_run_without_a_store_is_as_it_was() -> None:
    values = given()
    resolve_store(values, "rloo")
    assert values.offline_ratio == 0
    assert not is_offline(values)
    resolve_store(values, "rloo")
    del values.dataset  # a configuration made in Python has none
    resolve_store(values, "rloo")


def test_a_store_as_data_set_is_a_run_without_fresh_batches(store: str, tmp_path: Path) -> None:
    for changes in ({}, {"offline_ratio": 1.0}, {"trajectory_store": store}, {"async_rollout": False}):
        values = given(dataset=[store], offline_objective="awac", **changes)
        assert is_offline(values)
        resolve_store(values, "rloo")
        assert (values.offline_ratio, values.trajectory_store) == (1.0, store)
    values = given(trajectory_store=store, offline_ratio=1.0)
    resolve_store(values, "rloo")
    assert is_offline(values)
    assert [is_store(name) for name in (store, str(tmp_path), "an/id")] == [True, False, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_reuse": 0}, "--max_reuse 0 is refused"),
        ({"max_reuse": 256}, "--max_reuse 256 is refused"),
        ({"max_store_age": 0}, "--max_store_age 0 is refused"),
        ({"min_store_spread": -0.5}, "--min_store_spread -0.5 is refused"),
        ({"min_store_spread": math.nan}, "--min_store_spread nan is refused"),
        ({"min_store_reward": math.inf}, "--min_store_reward inf is refused"),
        ({"offline_ratio": 1.5}, "--offline_ratio 1.5 is refused"),
        ({"offline_ratio": 0.5, "online_every": 3}, "--offline_ratio 0.5 with --online_every 3 is refused"),
        (
            {"offline_ratio": 0.5, "trajectory_store": None},
            "--offline_ratio 0.5 has no effect without a store",
        ),
        ({"max_reuse": 2, "trajectory_store": None}, "--max_reuse 2 has no effect without a store"),
        (
            {"trajectory_store": __file__, "offline_ratio": 0.5},
            "is refused: it is a file; give the directory",
        ),
        ({"async_rollout": False}, "is refused without the asynchronous pipeline"),
        ({"min_store_spread": 0.1}, "--min_store_spread 0.1 has no effect without --offline_ratio above 0"),
        ({"offline_ratio": 1.0}, "there are no stored groups; fill it"),
        ({"offline_ratio": 1.0, "fill_the_wait": True}, "--fill_the_wait true has no effect without fresh"),
        ({"offline_ratio": 0.5, "offline_objective": "cql"}, "--offline_objective cql is refused beside"),
        ({"offline_ratio": 0.5, "off_policy_correction": "none"}, "is refused: stored groups are of other"),
        ({"fill_the_wait": True, "offline_objective": "rloo"}, "is refused: stored groups are of other"),
        ({"fill_the_wait": True, "deepspeed": "zero2"}, "cannot be used with --deepspeed zero2"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_store(given(**{"trajectory_store": "new"} | changes), "rloo")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offline_ratio": 0.5}, "has no fresh batches; give it as --trajectory_store"),
        ({"trajectory_store": "other"}, "which is a store itself; give one of them"),
        ({"max_store_age": 3}, "--max_store_age 3 has no effect without fresh batches"),
        ({"fill_the_wait": True}, "--fill_the_wait true has no effect without fresh batches"),
    ],
)
def test_what_a_store_as_data_set_has_not_is_refused(
    changes: dict[str, Any], message: str, store: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_store(given(dataset=[store], **changes), "rloo")
    with pytest.raises(ConfigError, match="is trained alone; give it alone"):
        resolve_store(given(dataset=[store, "rows.jsonl"]), "rloo")


def test_a_store_that_cannot_be_corrected_or_that_is_none_is_refused_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    lacking = str(answered_store(tmp_path / "lacking", 3, with_logprobs=False))
    for trains in ({"offline_ratio": 0.5}, {"fill_the_wait": True}):
        with pytest.raises(ConfigError, match=r"12 of 12 answers in the store .* have no log-probs"):
            resolve_store(given(trajectory_store=lacking, **trains), "rloo")
    resolve_store(given(trajectory_store=lacking), "rloo")  # only adds to it
    with pytest.raises(StoreError, match=r"has no store\.json, but other files, such as 'lacking'"):
        resolve_store(given(trajectory_store=str(tmp_path)), "rloo")


def test_other_types_have_no_weightless_stored_batches() -> None:
    with pytest.raises(ConfigError, match="does not belong to --rlhf_type reinforce_pp"):
        resolve_store(
            given(trajectory_store="new", offline_ratio=0.5, offline_objective="rloo_is"), "reinforce_pp"
        )
    with pytest.raises(ConfigError, match="--off_policy_correction none is refused with stored groups"):
        resolve_store(
            given(trajectory_store="new", offline_ratio=0.5, off_policy_correction="none"), "reinforce_pp"
        )
