"""The off-policy correction in real runs, with behavior log-probs that a plugin makes up."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs
import torch
from pipeline_runs import PickedUp

from swift_rlx.trainers.off_policy import OffPolicyMixin

PLUGIN = [str(Path(runs.__file__).with_name(f"{name}.py")) for name in ("fixed_rollout", "drifted_rollout")]


@pytest.fixture
def drifting(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Fixed completions from now on, which claim to be of a policy that is so far away."""
    from swift.rewards import orms
    from swift.rlhf_trainers import GRPOTrainer

    from swift_rlx.trainers.policy_gradient import PolicyGradientTrainer

    monkeypatch.setattr(GRPOTrainer, "_generate_completions", GRPOTrainer._generate_completions)
    monkeypatch.setitem(orms, "unevenly_scored", None)
    for name in ("_prepare_batch_inputs", "behavior_fields"):
        monkeypatch.setattr(PolicyGradientTrainer, name, getattr(PolicyGradientTrainer, name))
    import drifted_rollout
    import fixed_rollout

    fixed_rollout.install()

    def drift(amount: float) -> None:
        monkeypatch.setenv(drifted_rollout.DRIFT, str(amount))
        drifted_rollout.install()

    return drift


OPTIONS: dict[str, Any] = {
    "beta": 0.05,
    "reward_funcs": ["unevenly_scored"],
    "num_generations": 4,
    "per_device_train_batch_size": 3,
    "max_completion_length": 24,
    "max_steps": 2,
    "weight_decay": 0.0,
    "save_strategy": "steps",
    "save_steps": 2,
    "dataset_shuffle": False,
    "train_dataloader_shuffle": False,
}


def trained(output: Path) -> dict[str, torch.Tensor]:
    return runs.weights(output / "checkpoint-2")


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.timeout(240)
def test_behavior_log_probs_equal_to_the_policys_change_no_bit_and_others_the_weights(
    drifting: Callable[[float], None], tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    def run(name: str) -> dict[str, torch.Tensor]:
        runs.train(
            tiny_model,
            write_rows(9),
            tmp_path / name,
            rlhf_type="rloo",
            gradient_accumulation_steps=4,
            **OPTIONS,
        )
        return trained(tmp_path / name)

    plain = run("plain")
    assert not any("offpolicy" in name for line in runs.log_lines(tmp_path / "plain") for name in line)
    drifting(0.0)
    same = run("same")
    assert all(tensor.equal(same[name]) for name, tensor in plain.items())
    first = runs.log_lines(tmp_path / "same")[0]
    assert first["offpolicy/ess_token"] == pytest.approx(1.0)
    assert first["offpolicy/max_log_ratio"] == 0.0
    drifting(0.5)
    other = run("other")
    assert not all(tensor.equal(other[name]) for name, tensor in plain.items())


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_ranks_measure_and_train_as_one_process(
    drifting: Callable[[float], None], tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    import drifted_rollout

    data, one, two = write_rows(9), tmp_path / "one", tmp_path / "two"
    common = {"rlhf_type": "reinforce_pp"} | OPTIONS
    run = runs.swift(
        runs.arguments(
            tiny_model,
            data,
            two,
            **common,
            gradient_accumulation_steps=2,
            external_plugins=PLUGIN,
            ddp_backend="gloo",
        ),
        NPROC_PER_NODE="2",
        **{drifted_rollout.DRIFT: "0.5"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    drifting(0.5)
    runs.train(tiny_model, data, one, **common, gradient_accumulation_steps=4)

    for alone, ranks in zip(runs.log_lines(one)[:2], runs.log_lines(two)[:2], strict=True):
        names = [name for name in alone if name.startswith("offpolicy/")]
        assert {"offpolicy/ess_seq", "offpolicy/kl_k3"} <= set(names)
        for name in names:
            assert alone[name] == pytest.approx(ranks[name], rel=1e-4, abs=1e-6), name
    assert 0.0 < alone["offpolicy/ess_token"] < 0.99
    for name, tensor in trained(one).items():
        torch.testing.assert_close(trained(two)[name], tensor, rtol=0.0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("amount", [0.1, 3.0])
def test_the_gate_skips_what_is_too_far_off(
    amount: float,
    drifting: Callable[[float], None],
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flag belongs to the asynchronous pipeline, so that the option is set behind its back."""
    prepare = OffPolicyMixin._prepare_algorithm_params

    def with_gate(self: Any) -> None:
        prepare(self)
        self.off_policy = replace(self.off_policy, mode="token_truncate", ess_gate=True)

    monkeypatch.setattr(OffPolicyMixin, "_prepare_algorithm_params", with_gate)
    drifting(amount)
    options = OPTIONS | {"beta": 0.0}  # which alone would do without the proximal log-probs
    runs.train(
        tiny_model, write_rows(9), tmp_path, rlhf_type="rloo", gradient_accumulation_steps=4, **options
    )
    is_skipped = amount > 1
    for line in runs.log_lines(tmp_path)[:2]:
        assert line["offpolicy/batches_skipped"] == is_skipped
        assert (line["grad_norm"] == 0) == is_skipped
        assert (line["offpolicy/ess_token"] < 0.5) == is_skipped
    moved = [tensor.abs().max() for name, tensor in trained(tmp_path).items() if "lora_B" in name]
    assert (max(moved) == 0) == is_skipped  # lora_B starts at 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_on_the_pipeline_the_gate_has_older_answers_made_again(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift_rlx.trainers import off_policy
    from swift_rlx.trainers.pipeline import RolloutPipeline

    picked_up, made_again = PickedUp(monkeypatch), []
    refresh = RolloutPipeline.refresh

    def counting(self: RolloutPipeline) -> int:
        made_again.append(refresh(self))
        return made_again[-1]

    monkeypatch.setattr(RolloutPipeline, "refresh", counting)
    monkeypatch.setattr(off_policy, "GATE_ESS_TOKEN", 0.9999)  # one step is far enough
    # Without momentum and decay a skipped batch leaves the weights where they are: what is made again is on policy.
    pipeline_runs.train(
        tiny_model, write_rows(12), tmp_path / "out",
        ess_gate=True, off_policy_correction="token_truncate", max_steps=12, learning_rate=0.03,
        adam_beta1=0.0, weight_decay=0.0,
    )  # fmt: skip

    lines = [line for line in runs.log_lines(tmp_path / "out") if "grad_norm" in line]
    skipped = [line["offpolicy/batches_skipped"] for line in lines]
    assert skipped[0] == 0, "the first batch is made by the weights that train it"
    assert 0 < sum(skipped) == len(made_again) < len(lines)
    assert all((line["grad_norm"] == 0) == line["offpolicy/batches_skipped"] for line in lines)
    assert sum(made_again) > 0
    trained = Counter(picked_up.prompts())
    assert set(trained.values()) == {1}
    assert sum(trained.values()) == 24, "nothing is lost by it"
