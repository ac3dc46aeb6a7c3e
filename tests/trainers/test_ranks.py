"""Two ranks by the user's command against one process, on equal data: same advantages, same weights, a clean end."""

import json
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.versions, pytest.mark.timeout(240)]
PLUGIN, WITNESS = (Path(runs.__file__).with_name(f"{name}.py") for name in ("fixed_rollout", "group_witness"))
STEPS = 3
LOGGED = ("grad_norm", "kl", "reward", "reward_std", "rows/unscored", "groups/skipped", "groups/no_spread")


@pytest.fixture
def without_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the plugin's completions and reward into this process for one test."""
    from swift.rewards import orms
    from swift.rlhf_trainers import GRPOTrainer

    monkeypatch.setattr(GRPOTrainer, "_generate_completions", GRPOTrainer._generate_completions)
    monkeypatch.setitem(orms, "unevenly_scored", None)
    import fixed_rollout

    fixed_rollout.install()


def options(rlhf_type: str, micro_batches: int) -> dict[str, Any]:
    """12 completions a step in micro-batches of 3, so that groups of 4 cross micro-batches and ranks."""
    return {
        "rlhf_type": rlhf_type,
        "beta": 0.05,
        "reward_funcs": ["unevenly_scored"],
        "num_generations": 4,
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": micro_batches,
        "max_completion_length": 24,
        "max_steps": STEPS,
        "save_strategy": "steps",
        "save_steps": STEPS,
        "log_completions": True,
        "dataset_shuffle": False,
        "train_dataloader_shuffle": False,
    }


def completions(output: Path) -> list[dict[str, Any]]:
    lines = (output / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:STEPS]]


@pytest.fixture(scope="module", params=["rloo", "reinforce_pp", "reinforce_pp_baseline"])
def rlhf_type(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", 9)


@pytest.fixture(scope="module")
def two_ranks(rlhf_type: str, tiny_model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the user's command, from a file of options; with what `group_witness` wrote."""
    folder = tmp_path_factory.mktemp("two")
    config = tmp_path_factory.mktemp("options") / "config.yaml"  # ms-swift copies it into its output
    given = runs.arguments(
        tiny_model,
        data,
        folder,
        **options(rlhf_type, micro_batches=2),
        external_plugins=[str(PLUGIN), str(WITNESS)],
        ddp_backend="gloo",
    )
    config.write_text(yaml.safe_dump(given), encoding="utf-8")
    held = {"HOLD_TRAINER": "1"} if rlhf_type == "reinforce_pp" else {}
    run = runs.swift(config, NPROC_PER_NODE="2", WITNESS=str(folder), **held)
    assert run.returncode == 0, run.stderr[-3000:]
    return folder


def test_two_ranks_train_as_one_process_also_with_unscored_rows(
    rlhf_type: str, two_ranks: Path, tiny_model: Path, data: Path, tmp_path: Path, without_sampling: None
) -> None:
    one, two = tmp_path / "one", two_ranks
    runs.train(tiny_model, data, one, **options(rlhf_type, micro_batches=4))

    unscored = []
    for alone, ranks in zip(completions(one), completions(two), strict=True):
        assert alone["completion"] == ranks["completion"]
        assert alone["advantages"] == pytest.approx(ranks["advantages"], abs=1e-5)
        assert max(map(abs, alone["advantages"])) > 0.5
        unscored.append(sum(reward != reward for reward in ranks["unevenly_scored"]))
    assert unscored == [0, 3, 6]  # of the second rank's six rows

    for alone, ranks in zip(runs.log_lines(one)[:STEPS], runs.log_lines(two)[:STEPS], strict=True):
        for name in LOGGED:
            assert alone[name] == pytest.approx(ranks[name], rel=1e-4, abs=1e-6), name

    checkpoint = f"checkpoint-{STEPS}"
    weights_one, weights_two = runs.weights(one / checkpoint), runs.weights(two / checkpoint)
    for name, tensor in weights_one.items():
        torch.testing.assert_close(weights_two[name], tensor, rtol=0.0, atol=1e-4)
    moved = [tensor.abs().max() for name, tensor in weights_one.items() if "lora_B" in name]
    assert min(moved) > 1e-2  # lora_B starts at 0
    assert (two / checkpoint / "rlx" / "state.json").exists()


def test_two_ranks_end_without_a_thread_of_gloo_whoever_holds_the_trainer(two_ranks: Path) -> None:
    for rank in range(2):
        trained, end = (
            json.loads((two_ranks / f"{moment}-{rank}.json").read_text()) for moment in ("trained", "end")
        )
        assert trained["group"]
        assert "pt_gloo_runloop" in trained["gloo_threads"]  # the workers that the crash comes from
        assert end == {"group": False, "gloo_threads": []}
