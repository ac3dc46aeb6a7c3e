"""What the vLLM engine decides without vLLM: its environment, its arguments, and what it refuses."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from swift_rlx.backends import EngineSpec, WeightUpdate
from swift_rlx.backends import vllm_contract as contract
from swift_rlx.backends.vllm_adapter import adapter_fault
from swift_rlx.backends.vllm_answer import Span, policy_steps
from swift_rlx.backends.vllm_arguments import MIN_KV_BYTES, WeightTransfer, engine_arguments, kv_cache_bytes
from swift_rlx.backends.vllm_device_transfer import Order, Orders, read_order, write_order
from swift_rlx.backends.vllm_environment import environment
from swift_rlx.backends.vllm_plugin import register
from swift_rlx.backends.vllm_weight_files import shapes, weights_fault
from swift_rlx.errors import BackendError, ConfigError

KNOWN = {"gpu_memory_utilization", "max_num_seqs", "enforce_eager", "max_lora_rank", "max_model_len"}
CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 128,
    "max_position_embeddings": 1024,
}


def spec(**changes) -> EngineSpec:
    return EngineSpec(**{"name": "w", "model": "/nowhere", **changes})


def lora(**changes) -> dict[str, object]:
    return {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "bias": "none", **changes}


def write_safetensors(path: Path, entries: dict[str, list[int]]) -> None:
    header, at = {}, 0
    for name, shape in entries.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def test_the_environment_of_a_worker_on_a_cpu_keeps_what_the_user_set():
    chosen = environment(spec(), {"OMP_WAIT_POLICY": "ACTIVE", "VLLM_PLUGINS": "mine,rlx"})
    assert "OMP_WAIT_POLICY" not in chosen
    assert "OMP_NUM_THREADS" not in chosen  # the trainer knows how many cores it leaves
    assert chosen["VLLM_PLUGINS"] == "mine,rlx"
    assert chosen["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment(spec(), {})["OMP_WAIT_POLICY"] == "PASSIVE"


def test_the_environment_of_a_worker_on_gpus_names_its_cards(tmp_path):
    chosen = environment(spec(devices=("4", "5"), model=str(tmp_path)), {"CUDA_VISIBLE_DEVICES": "0"})
    assert chosen["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert chosen["VLLM_PLUGINS"] == "rlx"
    assert chosen["HF_HUB_OFFLINE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in chosen


def test_the_light_modules_import_neither_vllm_nor_torch():
    names = ["adapter", "answer", "arguments", "contract", "device_transfer", "engine", "environment"]
    names += ["plugin", "processes", "weight_files", "weights"]
    code = f"import sys; from swift_rlx.backends import {', '.join(f'vllm_{name}' for name in names)}; "
    code += "sys.exit(any(name in sys.modules for name in ('vllm', 'torch', 'transformers', 'safetensors')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arguments_follow_from_the_description_and_options_override_the_defaults():
    found = engine_arguments(
        spec(max_inflight=12, max_model_len=300, seed=3, options={"max_num_seqs": 5, "enforce_eager": None}),
        KNOWN,
    )
    assert found.vllm["max_num_seqs"] == 5
    assert found.vllm["max_model_len"] == 300
    assert found.vllm["logprobs_mode"] == "processed_logprobs"
    assert found.vllm["seed"] == 3
    assert found.vllm["enforce_eager"] is True  # an option that is None was not given
    assert found.vllm["enable_lora"] is False
    assert (found.weight_update, found.weight_transfer) == (WeightUpdate.KEEP, WeightTransfer.FILE)
    on_gpus = engine_arguments(spec(devices=("0", "1"), options={"weight_transfer": "file"}), KNOWN)
    assert on_gpus.vllm["tensor_parallel_size"] == 2
    assert "enforce_eager" not in on_gpus.vllm


def test_room_for_adapters_fits_their_rank_and_the_versions_in_flight():
    keeps = engine_arguments(spec(max_adapter_rank=9), KNOWN).vllm
    assert (keeps["enable_lora"], keeps["max_lora_rank"], keeps["max_loras"]) == (True, 16, 1)
    pins = engine_arguments(spec(max_adapter_rank=9, options={"weight_update": "pin"}), KNOWN).vllm
    assert 1 < pins["max_loras"] < pins["max_cpu_loras"]
    wide = engine_arguments(spec(max_adapter_rank=9, options={"max_lora_rank": 64}), KNOWN).vllm
    assert wide["max_lora_rank"] == 64


def test_adapters_are_put_around_the_layers_of_the_model_and_not_around_its_output(tmp_path):
    names = ["model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.up_proj.weight"]
    write_safetensors(
        tmp_path / "model.safetensors",
        {
            **{name: [4, 2] for name in names},
            "model.layers.0.self_attn.q_proj.weight": [2, 2],
            "model.norm.weight": [2],
        },
    )
    where = {"model": str(tmp_path), "max_adapter_rank": 8}
    assert engine_arguments(spec(**where), KNOWN).vllm["lora_target_modules"] == ["q_proj", "up_proj"]
    on_gpu = engine_arguments(spec(**where, devices=("0",)), KNOWN).vllm
    assert on_gpu["lora_target_modules"] == ["q_proj", "up_proj"]
    given = engine_arguments(
        spec(**where, options={"lora_target_modules": ["o_proj"]}), {*KNOWN, "lora_target_modules"}
    )
    assert given.vllm["lora_target_modules"] == ["o_proj"]


def test_experts_and_quantized_layers_are_layers_too(tmp_path):
    layers = ["self_attn.q_proj.qweight", "self_attn.v_proj.weight_packed", "mlp.experts.3.up_proj.weight"]
    names = {f"model.layers.0.{name}": [2, 2] for name in layers} | {"lm_head.qweight": [4, 2]}
    names |= {"image_newline": [4], "logit_scale": [1]}
    write_safetensors(tmp_path / "model.safetensors", names)
    found = engine_arguments(spec(model=str(tmp_path), max_adapter_rank=8), KNOWN).vllm
    assert found["lora_target_modules"] == ["experts", "q_proj", "up_proj", "v_proj"]


def test_experts_of_a_layer_in_one_tensor_are_experts(tmp_path):
    names = {"model.layers.0.mlp.experts.gate_up_proj": [2, 2, 4], "model.layers.0.mlp.gate.weight": [2, 2]}
    write_safetensors(tmp_path / "model.safetensors", names)
    found = engine_arguments(spec(model=str(tmp_path), max_adapter_rank=8), KNOWN).vllm
    assert found["lora_target_modules"] == ["experts", "gate"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"options": {"gpu_memory": 1}}, "option 'gpu_memory' is unknown"),
        ({"options": {"logprobs_mode": "raw_logprobs"}}, "'logprobs_mode' cannot be given: log-probs are"),
        ({"options": {"weight_update": "now"}}, "'weight_update' is 'now'; it can be 'keep', 'pin'"),
        ({"options": {"weight_transfer": "disk"}}, "'weight_transfer' is 'disk'; it can be 'file', 'ipc'"),
        *(
            (
                {"devices": ("0",), "options": {"weight_transfer": name}},
                f"is '{name}', which the trainer does not",
            )
            for name in ("ipc", "nccl")
        ),
        ({"max_adapter_rank": 1000}, "adapters of rank 1000 cannot be served by vLLM: it has room up to 512"),
        ({"devices": ("0", "1", "2"), "options": {"pipeline_parallel_size": 2}}, "worker has 3 devices"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        engine_arguments(spec(**changes), {*KNOWN, "pipeline_parallel_size"})


def test_memory_for_keys_and_values_holds_all_answers_and_stays_within_a_share(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    one = spec(model=str(tmp_path), max_inflight=640, max_model_len=1000)
    token = 2 * 2 * 2 * 32 * 4
    assert kv_cache_bytes(one, free_bytes=1 << 40) == (640 * 8 + 1) * 128 * token
    assert kv_cache_bytes(one, free_bytes=400_000_000) == 100_000_000
    assert kv_cache_bytes(replace(one, memory_share=0.25), free_bytes=1_600_000_000) == 100_000_000
    assert kv_cache_bytes(one, free_bytes=0) == MIN_KV_BYTES
    assert kv_cache_bytes(spec(), free_bytes=1 << 40) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "bias in the adapter"),
        ({"bias": "all"}, "bias=all"),
        ({"modules_to_save": ["norm"]}, "modules_to_save"),
        ({"r": 17}, "rank 17 is over the engine's 16"),
        ({"rank_pattern": {"q_proj": 32}}, "rank 32"),
        ({"peft_type": "VERA"}, "this is VERA"),
        ({"init_lora_weights": "pissa"}, "began as pissa"),
        ({"target_modules": ["model.lm_head"]}, "lm_head"),
        ({"trainable_token_indices": [1]}, "trained tokens"),
    ],
)
def test_an_adapter_that_vllm_cannot_load_is_named(changes, why):
    assert why in (adapter_fault(lora(**changes), 9) or "")


def test_an_ordinary_adapter_has_no_fault():
    assert adapter_fault(lora(r=16, use_rslora=True, init_lora_weights="gaussian"), 9) is None
    assert adapter_fault(lora(target_modules=r".*\.(q|v)_proj"), 8) is None
    assert "over the engine's 0" in (adapter_fault(lora(), 0) or "")


def test_spans_become_the_step_of_each_token():
    assert policy_steps([Span("2.7", 0, 2), Span("2.9", 2, 3)], 3).tolist() == [7, 7, 9]
    assert policy_steps([], 0).tolist() == []
    with pytest.raises(BackendError, match="which weights made 1 of 3 tokens"):
        policy_steps([Span("0.1", 0, 2)], 3)


def test_names_and_shapes_are_read_from_shards_and_from_an_index(tmp_path):
    write_safetensors(tmp_path / "a-1.safetensors", {"x": [2, 3]})
    write_safetensors(tmp_path / "a-2.safetensors", {"y": [4], "m.rotary_emb.inv_freq": [1]})
    assert shapes(tmp_path) == {"x": (2, 3), "y": (4,)}
    index = {"weight_map": {"x": "a-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert shapes(tmp_path) == {"x": (2, 3)}
    (tmp_path / "a-1.safetensors").write_bytes((tmp_path / "a-1.safetensors").read_bytes()[:-1])
    with pytest.raises(ValueError, match="no complete safetensors file"):
        shapes(tmp_path)


def test_weights_have_to_be_all_of_the_model_under_its_names():
    base = {"a": (1,), "lm_head.weight": (2,)}
    assert weights_fault(base, {"a": (1,)}, ties_output=True) is None
    assert weights_fault(base, {"a": (1,)}, ties_output=False) == "they lack lm_head.weight"
    assert weights_fault({"a": (1,)}, base, ties_output=True) is None
    assert weights_fault(base, {}, ties_output=True) == "there is no tensor in them"
    assert weights_fault({}, {"b": (1,)}, ties_output=False) is None
    assert weights_fault({"a": (1,), "b": (1,), "c": (1,)}, {"a": (1,)}, ties_output=True) == (
        "they lack b and 1 more"
    )


def test_what_the_trained_model_leaves_in_its_files_is_not_lacking_and_nothing_else():
    base = {"model.a": (1,), "mtp.layer": (2,), "model.mtp.b": (3,)}
    published = {"model.a": (1,)}
    fault = partial(weights_fault, ties_output=False, not_loaded=[r"^mtp\."])
    assert fault(base, published) == "they lack model.mtp.b"
    assert fault(base, {**published, "model.mtp.b": (3,)}) is None
    assert fault(base, {}) == "there is no tensor in them"
    assert fault(base, {**published, "model.mtp.b": (4,)}) == "model.mtp.b is [4] and not [3]"


def test_a_checkpoint_without_the_prefix_of_its_model_is_compared_under_it():
    base = {"h.0.w": (1,), "h.0.attn.bias": (9,), "wte": (2,)}
    published = {"transformer.h.0.w": (1,), "transformer.wte": (2,)}
    fault = partial(weights_fault, ties_output=False, not_loaded=["attn.bias"])
    assert fault(base, published) is None
    assert fault(base, {"transformer.h.0.w": (1,)}) == "they lack transformer.wte"
    assert fault(base, {**published, "transformer.wte": (3,)}) == "transformer.wte is [3] and not [2]"
    assert fault(base, {"other.x": (1,)}) == "they lack h.0.w and 1 more"


def test_without_vllm_the_check_says_how_to_install_it_and_the_plugin_is_silent(monkeypatch):
    monkeypatch.setattr(contract, "DISTRIBUTIONS", ("no-such-distribution",))
    assert contract.check() == [f"vLLM is not installed: {contract.INSTALL}"]
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "vllm.distributed.weight_transfer.factory", raising=False)
    register()


def test_another_version_is_judged_by_what_it_has(monkeypatch):
    assert contract.is_supported("0.32.5+cpu")
    assert not contract.is_supported("0.33.0")
    assert not contract.is_supported("0.31.9")
    monkeypatch.setattr(contract, "installed_version", lambda: "0.99.0")
    monkeypatch.setattr(contract, "NAMES", ("json:loads", "json:no_such_name"))
    monkeypatch.setattr(contract, "CALLABLES", {"json:JSONDecoder.decode": ("s", "twice")})
    monkeypatch.setattr(
        contract, "FIELDS", {"swift_rlx.types:Prompt": ("index", "age"), "json:JSONEncoder": ("x",)}
    )
    monkeypatch.setattr(
        contract, "ATTRIBUTES", {"json:JSONDecoder": ("strict", "lax"), "builtins:object": ("y",)}
    )
    found = contract.check()
    assert [fault.split(";")[0] for fault in found] == [
        "vLLM 0.99.0 lacks json.no_such_name (module 'json' has no attribute 'no_such_name')",
        "vLLM 0.99.0 has no parameter 'twice' in json.JSONDecoder.decode",
        "vLLM 0.99.0 has no field 'age' in swift_rlx.types.Prompt",
        "vLLM 0.99.0 has no field 'x' in json.JSONEncoder",
        "vLLM 0.99.0 has no attribute 'lax' in json.JSONDecoder",
        "vLLM 0.99.0 has no attribute 'y' in builtins.object",
    ]


def test_orders_for_a_device_transfer_travel_as_json(tmp_path):
    assert read_order(tmp_path) is None
    delivered = []
    client = Orders(lambda order: (write_order(tmp_path, order), delivered.append(read_order(tmp_path))))
    client.init_weight_transfer_engine({"packed": False})
    client.start_weight_update()
    client.update_weights({"names": ["a"], "shapes": [[1, 2]]})
    client.finish_weight_update("0.1")
    assert delivered == [Order(init={"packed": False}), Order(update={"names": ["a"], "shapes": [[1, 2]]})]
