"""The arguments of `swift rlhf`: what is accepted, what is refused in one sentence, what is written down."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import arguments

from swift_rlx.errors import ConfigError, PluginError, RlxError


@pytest.fixture
def build(tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """Build RLHFArguments of a quick rloo run, with changes."""

    def make(**changes: Any) -> Any:
        from swift import RLHFArguments

        options = {"rlhf_type": "rloo", "reward_funcs": ["format"], "report_to": ["none"]} | changes
        return RLHFArguments(**arguments(tiny_model, write_rows(16), tmp_path / "out", **options))

    return make


@pytest.mark.parametrize(
    ("name", "resolved", "estimator"),
    [
        ("rloo", "rloo", "rloo"),
        ("reinforce_pp", "reinforce_pp", "reinforce_plus_plus"),
        ("reinforce++", "reinforce_pp", "reinforce_plus_plus"),
        ("reinforce_plus_plus", "reinforce_pp", "reinforce_plus_plus"),
        ("reinforce_pp_baseline", "reinforce_pp_baseline", "reinforce_plus_plus"),
    ],
)
def test_a_type_is_grpo_inside_and_the_users_name_in_args_json(
    name: str, resolved: str, estimator: str, build: Callable[..., Any]
) -> None:
    args = build(rlhf_type=name)
    assert (args.rlhf_type, args.rlx_type, args.advantage_estimator) == ("grpo", resolved, estimator)
    assert type(args.training_args).__name__ == "RLXConfig"
    assert args.training_args.rlx_type == resolved
    args.save_args()
    saved = json.loads((Path(args.output_dir) / "args.json").read_text())
    assert saved["rlhf_type"] == resolved
    assert saved["swift_rlx_version"]
    assert "rlx_type" not in saved
    assert args.rlhf_type == "grpo", "saving must leave the arguments as they were"


def test_the_alias_that_means_something_else_in_stock_is_explained(
    build: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    build(rlhf_type="reinforce_plus_plus")
    assert "--advantage_estimator of that name subtracts the group mean" in capsys.readouterr().err
    build(rlhf_type="reinforce_pp")
    assert "subtracts the group mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "beta", "in_reward", "clip", "baseline"),
    [
        ("rloo", 0.05, True, None, "loo"),
        ("reinforce_pp", 0.01, True, 10.0, "none"),
        ("reinforce_pp_baseline", 1e-4, False, 10.0, "mean"),
    ],
)
def test_defaults_follow_the_papers(
    name: str, beta: float, in_reward: bool, clip: float | None, baseline: str, build: Callable[..., Any]
) -> None:
    args = build(rlhf_type=name)
    assert (args.beta, args.kl_in_reward, args.reward_clip, args.group_baseline) == (
        beta,
        in_reward,
        clip,
        baseline,
    )
    assert args.training_args.disable_dropout
    given = build(rlhf_type=name, beta=0.2, reward_clip=3.0)
    assert (given.beta, given.reward_clip) == (0.2, 3.0)
    assert build(rlhf_type=name, reward_clip=float("inf")).reward_clip is None


def test_the_flagship_command_needs_no_batch_sizes(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    from swift import RLHFArguments

    args = RLHFArguments(
        rlhf_type="rloo",
        model=str(tiny_model),
        model_type="llama",
        template="chatml",
        dataset=[str(write_rows(16))],
        reward_funcs=["format"],
        output_dir=str(tmp_path / "out"),
        report_to=["none"],
    )
    assert (args.per_device_train_batch_size, args.num_generations) == (1, 8)
    assert args.gradient_accumulation_steps == 8
    assert args.training_args.generation_batch_size == 8


REFUSED = [
    ({"advantage_estimator": "reinforce_plus_plus"}, "--advantage_estimator reinforce_plus_plus contradicts"),
    ({"scale_rewards": "gdpo"}, "--scale_rewards gdpo contradicts --rlhf_type rloo"),
    ({"rlhf_type": "reinforce_pp", "scale_rewards": "none"}, "--scale_rewards none contradicts"),
    ({"num_generations": 1}, "--num_generations 1 is refused for --rlhf_type rloo.*use at least 2"),
    ({"rlhf_type": "reinforce_pp_baseline", "num_generations": 1}, "--num_generations 1 is refused"),
    (
        {"num_generations": 3},
        r"does not divide the generation batch of 8.*make that a multiple of 3, or use one of \[2, 4, 8\]",
    ),
    (
        {"steps_per_generation": 3, "gradient_accumulation_steps": 2, "num_generations": 2},
        "do not fit together",
    ),
    (
        {
            "async_rollout": True,
            "steps_per_generation": 1,
            "num_iterations": 3,
            "gradient_accumulation_steps": 2,
        },
        "--num_iterations 3 trains a generation batch in 3 micro-batches.*--gradient_accumulation_steps 2",
    ),
    ({"num_generations": 8, "per_device_train_batch_size": 1}, "make that a multiple of 8"),
    (
        {"rlhf_type": "reinforce_pp", "num_generations": 1, "dynamic_sample": True},
        "--dynamic_sample true cannot",
    ),
    (
        {"rlhf_type": "reinforce_pp", "num_generations": 0},
        "--num_generations 0 is refused: it is the completions",
    ),
    ({"dataset": []}, "there is nothing to train on: give --dataset"),
    ({"dataset": ["nothere.jsonl#10"]}, "the data set nothere.jsonl#10 is no file here"),
    ({"val_dataset": ["nothere.csv"]}, "the data set nothere.csv is no file here"),
    ({"resume_from_checkpoint": "no/such/folder"}, "--resume_from_checkpoint no/such/folder is no folder"),
    ({"reward_on_error": "None"}, "--reward_on_error got 'None'"),
    ({"num_iterations": 0}, "--num_iterations 0 cannot be used"),
    ({"max_completion_length": 0}, "--max_completion_length 0 cannot be used with --rlhf_type rloo: a comp"),
    ({"num_generations_eval": 0}, "--num_generations_eval 0 cannot be used"),
    ({"beta": -0.1}, "--beta -0.1 cannot be used"),
    ({"epsilon": 0.0}, "--epsilon 0.0 cannot be used"),
    ({"epsilon_high": -1.0}, "--epsilon_high -1.0 cannot be used"),
    ({"reward_weights": [1.0, 2.0]}, "--reward_weights has 2 numbers for 1 rewards"),
    ({"use_gym_env": True}, "--use_gym_env true gives no reward here: environments are run by"),
    (
        {"resume_from_checkpoint": ".", "ignore_data_skip": True},
        "--ignore_data_skip true cannot be used with",
    ),
    ({"resume_from_checkpoint": ".", "sync_ref_model": True}, "--sync_ref_model true cannot be used with"),
    ({"reward_funcs": []}, "--rlhf_type rloo has no reward to learn from"),
    ({"loss_type": ["dapo"]}, "--loss_type dapo cannot be used with --rlhf_type rloo: rloo has one loss"),
    ({"importance_sampling_level": "sequence"}, "--importance_sampling_level sequence cannot be used"),
    ({"top_entropy_quantile": 0.5}, "--top_entropy_quantile 0.5 cannot be used"),
    ({"delta": 2.0}, "--delta 2.0 cannot be used"),
    ({"use_liger_kernel": True}, "--use_liger_kernel true cannot be used"),
    ({"advantage_reweight": "rlsd"}, "--advantage_reweight rlsd cannot be used"),
    ({"sdar_loss_coef": 0.1}, "--sdar_loss_coef 0.1 cannot be used"),
    ({"chord_sft_dataset": ["x"]}, "--chord_sft_dataset x cannot be used"),
    ({"teacher_model": "x"}, "--teacher_model x cannot be used"),
    (
        {"teacher_model_server": "http://localhost:1"},
        "--teacher_model_server http://localhost:1 cannot be used",
    ),
    ({"rollout_importance_sampling_mode": "token_mask"}, "use --off_policy_correction"),
    ({"log_rollout_offpolicy_metrics": True}, "rloo logs its own offpolicy/ metrics"),
    ({"off_policy_sequence_mask_delta": 0.5}, "has no effect without the asynchronous pipeline"),
    ({"async_generate": True}, "--async_generate true cannot be used"),
    ({"streaming": True}, "--streaming true cannot be used"),
    ({"packing": True}, "--packing true cannot be used"),
    ({"sequence_parallel_size": 2}, "--sequence_parallel_size 2 cannot be used"),
    ({"temperature": 0.0}, "--temperature 0.0 cannot be used"),
    ({"gamma": 0.9}, "--gamma 0.9 has no effect with --rlhf_type rloo"),
    ({"rlhf_type": "reinforce_pp", "gamma": 1.5}, "--gamma 1.5 is refused"),
    ({"rlhf_type": "reinforce_pp_baseline", "kl_in_reward": True}, "--kl_in_reward true contradicts"),
    ({"group_baseline": "mean"}, "--group_baseline mean does not belong to --rlhf_type rloo"),
    ({"group_baseline": "ema"}, "the running mean is --rlhf_type reinforce_pp"),
    ({"rlhf_type": "reinforce_pp", "group_baseline": "loo"}, "leave-one-out is --rlhf_type rloo"),
    ({"ema_baseline_decay": 0.9}, "--ema_baseline_decay 0.9 has no effect without --group_baseline ema"),
    (
        {"rlhf_type": "reinforce_pp", "group_baseline": "ema", "ema_baseline_decay": 1.0},
        "--ema_baseline_decay 1.0 is refused",
    ),
    ({"reward_clip": -1.0}, "--reward_clip -1.0 is refused"),
    ({"reward_on_error": "zero"}, "--reward_on_error got 'zero'"),
    ({"reward_timeout_s": 0.0}, "--reward_timeout_s 0 is refused"),
    ({"reward_workers": 0}, "--reward_workers 0 is refused: at least one process scores"),
    ({"reward_devices": "1,1"}, "--reward_devices 1,1 is refused: give different numbers"),
    (
        {"reward_normalize": "group_std"},
        "--reward_normalize group_std is refused: it is none, zscore or group",
    ),
    ({"reward_version_change": "go on"}, "--reward_version_change go on is refused"),
    ({"reward_ensemble": "max"}, "--reward_ensemble got 'max'"),
    ({"reward_ensemble": "mean"}, "--reward_ensemble mean needs at least two reward models"),
    ({"reward_funcs": ["format", "format"]}, "--reward_funcs names format twice"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=[" ".join(changes) for changes, _ in REFUSED])
def test_what_cannot_work_is_refused_in_one_sentence(
    changes: dict[str, Any], sentence: str, build: Callable[..., Any]
) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        build(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flag", ["model", "ref_model"])
def test_a_model_that_is_no_folder_is_refused_in_our_words(flag: str, build: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=f"--{flag} ./nowhere is refused: there is no folder '/"):
        build(**{flag: "./nowhere"})


def test_an_unknown_reward_is_refused_before_the_model_is_looked_at(build: Callable[..., Any]) -> None:
    with pytest.raises(
        PluginError,
        match=r"unknown reward 'acuracy'.*@register_reward.*did you mean ms-swift's 'accuracy'",
    ):
        build(reward_funcs=["acuracy"], model="no/such-model")


def test_accuracy_says_what_it_needs(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from swift_rlx.integration import reward_names

    monkeypatch.setattr(reward_names.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package math-verify.*pip install math-verify$"):
        build(reward_funcs=["accuracy"], model="no/such-model")


@pytest.mark.parametrize(
    "flag", [{"reward_clip": 5.0}, {"group_baseline": "ema"}, {"reward_on_error": "none"}]
)
def test_our_flags_are_refused_for_stock_types(flag: dict[str, Any], build: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="belongs to swift-rlx and cannot be used with --rlhf_type grpo"):
        build(rlhf_type="grpo", **flag)


def test_stock_arguments_are_written_as_without_us(build: Callable[..., Any]) -> None:
    from swift_rlx.integration.fields import FIELD_NAMES

    args = build(rlhf_type="grpo")
    args.save_args()
    saved = json.loads((Path(args.output_dir) / "args.json").read_text())
    assert saved["rlhf_type"] == "grpo"
    assert not {*FIELD_NAMES, "rlx_type", "swift_rlx_version"} & saved.keys()
    assert type(args.training_args).__name__ == "GRPOConfig"


def test_arguments_survive_pickling_for_spawned_processes(build: Callable[..., Any]) -> None:
    args = build()
    copy = pickle.loads(pickle.dumps(args))
    assert (copy.rlx_type, copy.reward_on_error) == ("rloo", "raise")


def test_sampling_that_log_probs_cannot_replay_is_warned_about(
    build: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    from swift.utils import get_logger

    get_logger().propagate = True
    try:
        build(top_p=0.9, top_k=50)
    finally:
        get_logger().propagate = False
    assert "--top_p 0.9 --top_k 50 samples from a distribution" in caplog.text


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("def reward(:\n", "SyntaxError"),
        ("import notamodule\n", "ModuleNotFoundError: No module named 'notamodule'"),
        (None, "FileNotFoundError"),
    ],
)
def test_a_plugin_file_that_does_not_import_is_one_sentence(
    text: str | None, cause: str, build: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "plugin_with_a_fault.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(
        PluginError, match=rf"--external_plugins .*plugin_with_a_fault\.py cannot be imported: {cause}"
    ):
        build(external_plugins=[str(file)])


def test_an_unknown_flag_is_one_sentence_in_our_runs_only() -> None:
    from swift_rlx.integration.arguments import _unknown_flags

    error = ValueError("remaining_argv: ['--group_basline', 'loo']")
    sentence = _unknown_flags(error, ["rlhf.py", "--rlhf_type", "rloo", "--group_basline", "loo"])
    assert sentence == "--group_basline is no flag of swift rlhf; did you mean --group_baseline?"
    assert _unknown_flags(error, ["rlhf.py", "--rlhf_type", "grpo", "--group_basline", "loo"]) is None
    assert _unknown_flags(ValueError("other"), ["rlhf.py", "--rlhf_type", "rloo"]) is None


@pytest.mark.slow
def test_a_users_mistake_prints_one_sentence_and_a_bug_its_traceback() -> None:
    script = (
        "import swift_rlx._boot as boot; boot.install(); import swift.arguments, sys\n"
        "from swift_rlx.errors import ConfigError\n"
        "raise {}('the sentence')"
    )
    mistake = subprocess.run(
        [sys.executable, "-c", script.format("ConfigError")], capture_output=True, text=True, check=False
    )
    assert mistake.returncode == 1
    assert mistake.stderr.splitlines()[-1] == "swift-rlx: error: the sentence"
    assert "Traceback" not in mistake.stderr
    bug = subprocess.run(
        [sys.executable, "-c", script.format("ValueError")], capture_output=True, text=True, check=False
    )
    assert "Traceback" in bug.stderr
    assert issubclass(ConfigError, RlxError)


def test_a_run_of_stock_arguments_never_becomes_ours_by_name() -> None:
    """Arguments that bypassed the hook must not train another algorithm under our name."""
    from swift.trainers import TrainerFactory

    from swift_rlx.errors import ContractError

    class Bypassed:
        rlhf_type = "rloo"

    with pytest.raises(ContractError, match="reached ms-swift's trainer table without swift-rlx's arguments"):
        TrainerFactory.get_trainer_cls(Bypassed())
