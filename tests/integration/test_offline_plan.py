"""A store as `--dataset`: what becomes of the arguments, and what is refused before a model is loaded."""

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answered_store import answered_group, answered_store
from runs import arguments

from swift_rlx.errors import ConfigError, StoreError
from swift_rlx.integration.stored_dataset import GROUP
from swift_rlx.store import StoredGroup, TrajectoryStore

Build = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return answered_store(tmp_path / "answers.store", 6)


@pytest.fixture
def build(tiny_model: Path, store: Path, tmp_path: Path) -> Build:
    """Build RLHFArguments of a run on the store, with changes."""

    def make(**changes: Any) -> Any:
        from swift import RLHFArguments

        options = {"rlhf_type": "rloo", "async_rollout": None, "report_to": ["none"]} | changes
        options.setdefault("num_generations", None)
        return RLHFArguments(**arguments(tiny_model, store, tmp_path / "out", **options))

    return make


def other(folder: Path, groups: list[StoredGroup]) -> list[str]:
    with TrajectoryStore.create(folder).writer("a") as writer:
        writer.add(groups)
        writer.seal()
    return [str(folder)]


def test_a_store_as_dataset_needs_neither_a_reward_nor_an_engine(build: Build, store: Path) -> None:
    args = build()
    plan = args.rlx_offline
    assert (plan["store"], plan["objective"], plan["recipe"]) == (str(store), "rloo_is", "length@1")
    assert not args.async_rollout
    assert args.num_generations == 4
    assert args.off_policy_correction == "sequence_product", "no stored completion is long"
    assert args.training_args.rlx_offline == plan
    assert pickle.loads(pickle.dumps(args)).rlx_offline == plan
    args.save_args()
    saved = json.loads((Path(args.output_dir) / "args.json").read_text())
    assert saved["dataset"] == [str(store)]
    assert "rlx_offline" not in saved


def test_offline_ratio_1_of_a_trajectory_store_is_the_same(build: Build, store: Path) -> None:
    args = build(dataset=None, trajectory_store=str(store), offline_ratio=1.0)
    assert args.rlx_offline == build().rlx_offline
    assert args.dataset == [str(store)]
    with pytest.raises(ConfigError, match=r"--offline_ratio 1 is refused beside --dataset some\.jsonl"):
        build(dataset=["some.jsonl"], trajectory_store=str(store), offline_ratio=1.0)
    with pytest.raises(ConfigError, match="--trajectory_store nowhere is no store; fill one"):
        build(dataset=None, trajectory_store="nowhere", offline_ratio=1.0)


def test_the_rows_are_the_groups_with_their_prompts(build: Build) -> None:
    train, val = build().load_dataset()
    assert val is None
    assert len(train) == 6
    assert sorted(row["messages"][0]["content"] for row in train) == [f"Say {number}" for number in range(6)]
    assert len({row[GROUP] for row in train}) == 6
    sampled, _ = build(dataset=[f"{build().rlx_offline['store']}#3"]).load_dataset()
    assert len(sampled) == 3


def test_a_store_in_an_object_store_is_a_dataset_too(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    url = "memory://bucket/answers"
    with TrajectoryStore.create(url).writer("a") as writer:
        writer.add([answered_group(number) for number in range(5)])
        writer.seal()
    args = build(dataset=[url])
    assert args.rlx_offline["store"] == args.trajectory_store == url
    assert len(args.load_dataset()[0]) == 5
    assert len(build(dataset=[f"{url}#2"]).load_dataset()[0]) == 2


def test_auto_is_awac_where_log_probs_are_missing(build: Build, tmp_path: Path) -> None:
    lacking = answered_store(tmp_path / "lacking", 3, with_logprobs=False)
    args = build(dataset=[str(lacking)])
    assert args.rlx_offline["objective"] == "awac"
    assert (args.rlx_offline["beta"], args.beta) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("objective", "given", "of_objective", "of_ms_swift"),
    [
        ("rloo_is", None, 0.05, 0.05),
        ("softmax_ce", None, 0.03, 0.03),
        ("softmax_ce", 0.2, 0.2, 0.2),
        ("softmax_ce_forward_kl", None, 0.03, 0.0),
        ("awac", 0.1, 0.1, 0.1),
        ("cql", None, 0.0, 0.0),
    ],
)
def test_beta_is_the_kl_of_the_objective_and_a_reference_is_loaded_only_where_it_is_used(
    objective: str, given: float | None, of_objective: float, of_ms_swift: float, build: Build
) -> None:
    args = build(offline_objective=objective, beta=given)
    assert (args.rlx_offline["beta"], args.beta) == (of_objective, of_ms_swift)


def test_single_completions_train_by_what_compares_nothing(build: Build, tmp_path: Path) -> None:
    single = other(tmp_path / "single", [answered_group(number, 1) for number in range(8)])
    with pytest.raises(StoreError, match="8 too few scored"):
        build(dataset=single)
    args = build(dataset=single, offline_objective="cql")
    assert args.num_generations == 1
    args = build(dataset=single, offline_objective="awac", offline_settings='{"advantages": "reward"}')
    assert args.num_generations == 1


def test_filters_and_a_chosen_recipe_leave_groups_out(build: Build, tmp_path: Path) -> None:
    groups = [answered_group(number, rewards=(0.0, float(number))) for number in range(4)]
    rescored = StoredGroup(answered_group(9, rewards=(0.0, 9.0)).group, recipe="weighted: 1*human@2")
    mixed = other(tmp_path / "mixed", [*groups, rescored])
    with pytest.raises(StoreError, match="rewards that must not be mixed in a batch"):
        build(dataset=mixed)

    def rows(**changes: Any) -> int:
        return len(build(dataset=mixed, store_recipe="length@1", **changes).load_dataset()[0])

    assert rows() == 4
    assert rows(min_store_spread=2.0) == 2
    assert rows(min_store_reward=3.0) == 1
    assert len(build(dataset=mixed, store_recipe="weighted: 1*human@2").load_dataset()[0]) == 1
    with pytest.raises(StoreError, match=r"no group of the store .* has rewards of 'human@3'"):
        build(dataset=mixed, store_recipe="human@3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rlhf_type": "reinforce_pp"}, "--rlhf_type reinforce_pp is refused with the store"),
        ({"rollout_workers": 2}, "--rollout_workers 2 has no effect on the stored groups"),
        ({"use_vllm": True}, "--use_vllm true has no effect on the stored groups"),
        ({"dynamic_sample": True}, "--dynamic_sample true has no effect on the stored groups"),
        ({"reward_normalize": "zscore"}, "--reward_normalize zscore has no effect on the stored groups"),
        ({"offline_ratio": 0.5}, r"--offline_ratio 0\.5 is refused with --dataset"),
        ({"online_every": 2}, "--online_every 2 is refused with --dataset"),
        ({"split_dataset_ratio": 0.1}, "--split_dataset_ratio 0.1 is refused with the store"),
        ({"reward_funcs": ["format"]}, "--reward_funcs format has no effect on the stored groups"),
        ({"val_dataset": ["val.jsonl"]}, "--val_dataset val.jsonl is refused without --reward_funcs"),
        ({"num_generations": 5}, "--num_generations 5 is refused: no group of the store has more than 4"),
        (
            {"offline_objective": "rloo"},
            "--offline_objective rloo is refused: stored completions were sampled",
        ),
        (
            {"off_policy_correction": "none"},
            "--off_policy_correction none is refused with --offline_objective",
        ),
        ({"offline_settings": '{"tau": 1}'}, "is refused for --offline_objective rloo_is, which is set by"),
        ({"offline_settings": "tau"}, "it is a JSON object of settings"),
        ({"offline_objective": "awac", "ess_gate": True}, "--ess_gate true has no effect with --offline_obj"),
        ({"offline_objective": "awac", "off_policy_cap": 3.0}, "--off_policy_cap 3.0 has no effect"),
        ({"offline_objective": "cql", "share_prompt": True}, "--share_prompt true is refused with --offline"),
        ({"offline_objective": "cql", "tuner_type": "full"}, "--tuner_type full is refused with --offline"),
        ({"offline_objective": "cql", "beta": 0.1}, "--beta 0.1 is refused for --offline_objective cql"),
        (
            {"constraint_filter": "penalty"},
            "--constraint_filter penalty is refused: it is none, reject, or penalty",
        ),
        ({"constraint_settings": "{}"}, "--constraint_settings {} has no effect without --constraint_filter"),
        (
            {"constraint_filter": "penalty:0.5", "offline_objective": "softmax_ce"},
            "--constraint_filter penalty:0.5 is refused for --offline_objective softmax_ce, which compares",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], message: str, build: Build) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**changes)


def test_unweighted_rloo_is_trained_where_it_is_asked_for_twice(build: Build) -> None:
    args = build(offline_objective="rloo", off_policy_correction="none")
    assert args.rlx_offline["objective"] == "rloo"


def test_settings_of_offline_runs_mean_nothing_in_others(build: Build, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": str(row)}]}) + "\n" for row in range(9))
    )
    fresh = {"dataset": [str(rows)], "reward_funcs": ["format"]}
    given = {
        "offline_settings": "{}",
        "store_recipe": "a@1",
        "constraint_filter": "reject",
        "constraint_settings": "{}",
    }
    for name, value in given.items():
        with pytest.raises(ConfigError, match=f"--{name} .* has no effect without a store as --dataset"):
            build(**fresh, **{name: value})
    with pytest.raises(ConfigError, match=r"--offline_objective awac is refused: --dataset .* is no store"):
        build(**fresh, offline_objective="awac")


def test_every_field_of_the_plan_is_known_to_the_training_configuration(build: Build) -> None:
    from swift_rlx.integration.training_config import RLXConfig

    assert "rlx_offline" in {each.name for each in dataclasses.fields(RLXConfig)}
