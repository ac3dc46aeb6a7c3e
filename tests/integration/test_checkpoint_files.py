"""What is told of a checkpoint that lacks a part, before anything is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_stubs import FILES, stub
from runs import arguments

from swift_rlx.errors import CheckpointError
from swift_rlx.integration.checkpoint_files import last_complete, missing_part, refuse_incomplete

ALL = (*FILES, "trainer_state.json")


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        ((), None),
        (ALL, "trainer_state.json, which is written last"),
        (("trainer_state.json",), "trainer_state.json, which is written last"),
        (("rlx/state.json",), "rlx/state.json"),
        (("adapter_model.safetensors",), "weights"),
        (("optimizer.pt",), "state of the optimizer"),
        (("scheduler.pt",), "state of the learning rate's schedule"),
        (("rng_state.pth",), "state of the random numbers"),
        (("adapter_config.json", "training_args.bin"), None),
    ],
)
def test_the_first_part_that_is_missing_is_named(
    without: tuple[str, ...], missing: str | None, tmp_path: Path
) -> None:
    assert missing_part(stub(tmp_path / "checkpoint-3", without)) == missing


@pytest.mark.parametrize("name", ["trainer_state.json", "rlx/state.json"])
def test_a_file_that_was_cut_off_is_missing(name: str, tmp_path: Path) -> None:
    checkpoint = stub(tmp_path / "checkpoint-3")
    (checkpoint / name).write_text('{"global_step": 3, "log_', encoding="utf-8")
    assert str(missing_part(checkpoint)).startswith(f"readable {name}")


def test_an_empty_file_of_weights_is_missing(tmp_path: Path) -> None:
    checkpoint = stub(tmp_path / "checkpoint-3")
    (checkpoint / "adapter_model.safetensors").write_bytes(b"")
    assert missing_part(checkpoint) == "weights"


def test_a_half_trained_batch_is_a_part_and_no_file_of_weights(tmp_path: Path) -> None:
    checkpoint = stub(tmp_path / "checkpoint-3", buffer_in_use=True)
    assert missing_part(checkpoint) == "rlx/buffer-rank0.safetensors"
    (checkpoint / "rlx" / "buffer-rank0.safetensors").write_text("rows", encoding="utf-8")
    assert missing_part(checkpoint) is None
    (checkpoint / "adapter_model.safetensors").unlink()
    assert missing_part(checkpoint) == "weights"


@pytest.mark.parametrize(
    "files",
    [
        ["model-00001-of-00002.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"],
        ["global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt", "rng_state_0.pth"],
        [
            "pytorch_model_fsdp_0/__0_0.distcp",
            "optimizer_0/__0_0.distcp",
            "scheduler.pt",
            "rng_state_0.pth",
        ],
        ["default/adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"],
    ],
)
def test_other_kinds_of_checkpoints_are_complete(files: list[str], tmp_path: Path) -> None:
    checkpoint = stub(tmp_path / "checkpoint-3", FILES)
    for name in files:
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text("weights", encoding="utf-8")
    assert missing_part(checkpoint) is None


def test_the_last_complete_one_is_found_by_its_number(tmp_path: Path) -> None:
    assert last_complete(tmp_path / "nowhere") is None
    assert last_complete(tmp_path) is None
    for step in (3, 6, 20):
        stub(tmp_path / f"checkpoint-{step}")
    stub(tmp_path / "checkpoint-100", ("trainer_state.json",))
    stub(tmp_path / "checkpoint-best")
    (tmp_path / "last").symlink_to(tmp_path / "checkpoint-100")
    assert last_complete(tmp_path) == tmp_path / "checkpoint-20"


def test_a_torn_checkpoint_is_refused_with_the_one_to_take(tmp_path: Path) -> None:
    torn = stub(tmp_path / "checkpoint-9", ALL)
    with pytest.raises(
        CheckpointError,
        match=rf"checkpoint-9 is refused: checkpoint-9 is incomplete, it has no trainer_state.json.*"
        rf"; there is no complete one in {tmp_path}, so begin anew without the flag$",
    ):
        refuse_incomplete(str(torn))
    stub(tmp_path / "checkpoint-6")
    with pytest.raises(
        CheckpointError, match=rf"; resume from {tmp_path}/checkpoint-6, the last complete one$"
    ):
        refuse_incomplete(f"{torn}/")


def test_where_only_our_state_is_missing_the_weights_can_be_had(tmp_path: Path) -> None:
    of_stock = stub(tmp_path / "checkpoint-9", ("rlx/state.json",))
    with pytest.raises(CheckpointError, match=r"or take only its weights with --resume_only_model true$"):
        refuse_incomplete(str(of_stock))
    refuse_incomplete(str(of_stock), only_weights=True)
    (of_stock / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="it has no weights"):
        refuse_incomplete(str(of_stock), only_weights=True)


def test_the_directory_of_a_run_is_told_from_a_checkpoint(tmp_path: Path) -> None:
    stub(tmp_path / "v0" / "checkpoint-6")
    with pytest.raises(
        CheckpointError, match=r"is the directory of a run; its last complete checkpoint is .*v0/checkpoint-6"
    ):
        refuse_incomplete(str(tmp_path / "v0"))


@pytest.mark.parametrize("only", [True, False])
def test_the_command_refuses_it_before_the_model_is_looked_at(
    only: bool, tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    from swift import RLHFArguments

    torn = stub(tmp_path / "checkpoint-9", ALL)
    changes: dict[str, Any] = {"rlhf_type": "rloo", "reward_funcs": ["format"], "report_to": ["none"]}
    changes |= {"resume_from_checkpoint": str(torn), "resume_only_model": only, "model": "no/such-model"}
    with pytest.raises(CheckpointError, match="checkpoint-9 is incomplete"):
        RLHFArguments(**arguments(tiny_model, write_rows(16), tmp_path / "out", **changes))
