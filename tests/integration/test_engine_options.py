"""ms-swift's engine flags: each reaches the workers with its value, or is refused where the pipeline replaces it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import arguments

from swift_rlx.errors import ConfigError
from swift_rlx.integration.engine_options import FORWARDED, REPLACED

GIVEN: dict[str, tuple[Any, Any]] = {
    "vllm_gpu_memory_utilization": (0.8, 0.8),
    "vllm_tensor_parallel_size": (2, 2),
    "vllm_pipeline_parallel_size": (2, 2),
    "vllm_enable_expert_parallel": (True, True),
    "vllm_max_num_seqs": (64, 64),
    "vllm_max_model_len": (4096, 4096),
    "vllm_disable_custom_all_reduce": (False, False),
    "vllm_enforce_eager": (True, True),
    "vllm_limit_mm_per_prompt": ('{"image": 5}', {"image": 5}),
    "vllm_max_lora_rank": (64, 64),
    "vllm_enable_prefix_caching": (False, False),
    "vllm_quantization": ("fp8", "fp8"),
    "vllm_disable_cascade_attn": (True, True),
    "vllm_mm_processor_cache_gb": (2.0, 2.0),
    "vllm_speculative_config": ('{"method": "ngram"}', {"method": "ngram"}),
}
"""Flag -> what the user gives, and what vLLM's engine argument becomes."""

STOCK: dict[str, Any] = {
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_server_base_url": ["http://127.0.0.1:8000"],
    "vllm_server_host": ["127.0.0.1"],
    "vllm_use_async_engine": True,
    "vllm_data_parallel_size": 2,
    "vllm_enable_lora": True,
    "sleep_level": 1,
    "offload_model": True,
    "offload_optimizer": True,
}


@pytest.fixture
def build(tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """RLHFArguments of a quick run on the pipeline, with changes."""

    def make(**changes: Any) -> Any:
        from swift import RLHFArguments

        options = {
            "rlhf_type": "rloo",
            "reward_funcs": ["format"],
            "report_to": ["none"],
            "async_rollout": True,
        }
        return RLHFArguments(**arguments(tiny_model, write_rows(16), tmp_path / "out", **options | changes))

    return make


def test_every_flag_of_the_two_tables_is_tested_here() -> None:
    assert set(GIVEN) == set(FORWARDED)
    assert set(STOCK) == set(REPLACED)


def test_every_replaced_flag_is_one_of_ms_swift() -> None:
    from dataclasses import fields

    from swift import RLHFArguments

    assert set(REPLACED) | set(FORWARDED) <= {each.name for each in fields(RLHFArguments)}


def test_nothing_is_forwarded_that_was_not_given(build: Callable[..., Any]) -> None:
    assert build().training_args.rlx_engine_options == {}


def test_each_engine_flag_reaches_the_workers_with_its_value(build: Callable[..., Any]) -> None:
    args = build(**{flag: given for flag, (given, _) in GIVEN.items()})
    assert args.training_args.rlx_engine_options == {
        FORWARDED[flag]: value for flag, (_, value) in GIVEN.items()
    }


@pytest.mark.parametrize("given", ['{"swap_space": 2, "max_loras": 3}', {"swap_space": 2, "max_loras": 3}])
def test_engine_kwargs_may_hold_any_other_argument_and_win(given: Any, build: Callable[..., Any]) -> None:
    args = build(vllm_engine_kwargs=given, vllm_max_num_seqs=64)
    assert args.training_args.rlx_engine_options == {"max_num_seqs": 64, "swap_space": 2, "max_loras": 3}
    args = build(vllm_engine_kwargs={"max_num_seqs": 8}, vllm_max_num_seqs=64)
    assert args.training_args.rlx_engine_options == {"max_num_seqs": 8}


@pytest.mark.parametrize("text", ["max_loras=3", "[1, 2]", "3", '"text"', "{"])
def test_engine_kwargs_that_are_no_json_object_are_refused(text: str, build: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(vllm_engine_kwargs=text)
    assert f"--vllm_engine_kwargs {text} is no JSON object" in str(caught.value)


@pytest.mark.parametrize("name", ["ipc", "nccl"])
def test_a_transfer_of_weights_that_nothing_drives_is_refused(build: Callable[..., Any], name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"'weight_transfer' is '{name}', which the trainer does not drive yet"
    ):
        build(vllm_engine_kwargs={"weight_transfer": name})
    assert build(vllm_engine_kwargs={"weight_transfer": "file"})


@pytest.mark.parametrize("flag", ["vllm_limit_mm_per_prompt", "vllm_speculative_config"])
def test_a_flag_that_holds_json_takes_a_file_too(
    flag: str, build: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "value.json").write_text('{"image": 3}', encoding="utf-8")
    args = build(**{flag: str(tmp_path / "value.json")})
    assert args.training_args.rlx_engine_options == {FORWARDED[flag]: {"image": 3}}
    with pytest.raises(ConfigError, match=f"--{flag} image=3 is no JSON object; give one"):
        build(**{flag: "image=3"})


@pytest.mark.parametrize("flag", REPLACED)
def test_a_flag_of_ms_swifts_own_generation_is_refused_with_what_replaces_it(
    flag: str, build: Callable[..., Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**{flag: STOCK[flag]})
    sentence = str(caught.value)
    assert sentence.startswith(f"--{flag} ")
    assert REPLACED[flag] in sentence
    assert "or use --async_rollout false" in sentence


@pytest.mark.parametrize(
    "flag", sorted(set(REPLACED) - {"use_vllm", "vllm_mode", "vllm_server_base_url", "vllm_server_host"})
)
def test_without_the_pipeline_it_keeps_its_meaning(flag: str, build: Callable[..., Any]) -> None:
    build(**{flag: STOCK[flag]}, async_rollout=False)
    build(**{flag: STOCK[flag]}, max_staleness=0)


def test_without_the_pipeline_ms_swift_generates_with_vllm(build: Callable[..., Any]) -> None:
    args = build(use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.4, async_rollout=False)
    assert (args.use_vllm, args.vllm_mode, args.vllm_gpu_memory_utilization) == (True, "colocate", 0.4)
