"""Our use of vLLM held against the installed vLLM, without starting an engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift_rlx.backends import EngineSpec
from swift_rlx.backends.vllm_adapter import RANKS, adapter_fault
from swift_rlx.backends.vllm_arguments import WeightTransfer
from swift_rlx.backends.vllm_contract import check, installed_version, is_supported
from swift_rlx.backends.vllm_device_transfer import (
    Order,
    Orders,
    backend_of,
    handle_of,
    ipc_start,
    nccl_start,
    read_order,
    write_order,
)
from swift_rlx.backends.vllm_engine import create
from swift_rlx.backends.vllm_plugin import TRANSFERS, register
from swift_rlx.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


def test_the_installed_vllm_is_supported_and_has_all_that_we_use():
    assert is_supported(installed_version())
    assert check() == []


def test_our_transfers_are_known_to_vllm_once_however_often_they_are_registered():
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    register()
    register()
    for name in TRANSFERS:
        assert issubclass(WeightTransferEngineFactory._registry[name](), WeightTransferEngine)
    for transfer in WeightTransfer:
        assert backend_of(transfer) in WeightTransferEngineFactory._registry


def test_our_rule_for_adapters_refuses_what_vllm_refuses():
    from typing import get_args

    from vllm.config.lora import LoRAConfig, MaxLoRARanks
    from vllm.lora.peft_helper import PEFTHelper

    assert get_args(MaxLoRARanks) == RANKS
    for change in (
        {},
        {"use_dora": True},
        {"lora_bias": True},
        {"modules_to_save": ["norm"]},
        {"r": 17},
        {"init_lora_weights": "pissa"},
        {"bias": "all"},
        {"use_rslora": True},
        {"rank_pattern": {"x": 32}},
    ):
        config = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], **change}
        try:
            PEFTHelper.from_dict(config).validate_legal(LoRAConfig(max_lora_rank=16))
        except ValueError:
            assert adapter_fault(config, 16) is not None, change
        else:
            assert adapter_fault(config, 16) is None, change


def test_the_trainers_half_of_vllms_transfers_can_be_driven_by_our_client():
    from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    assert isinstance(Orders(lambda order: None), VLLMWeightSyncClient)
    for start in (nccl_start(0, "10.0.0.1", 5000, devices=4), ipc_start(0)):
        assert start.backend in WeightTransferTrainerFactory._registry
        assert start.is_sender
    assert nccl_start(1, "10.0.0.1", 5000, devices=4).world_size == 5


def test_a_handle_of_cuda_memory_arrives_as_torch_made_it(tmp_path):
    import torch
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    handle = (
        torch.Tensor,
        torch.Size([2, 3]),
        (3, 1),
        0,
        torch.UntypedStorage,
        torch.bfloat16,
        0,
        b"\x01\xff" * 32,
        12,
        0,
        False,
        b"ref",
        0,
        b"event",
        True,
    )
    update = {"names": ["w"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}
    write_order(tmp_path, Order(update={**update, "ipc_handles": [{"GPU-1": handle}]}))
    order = read_order(tmp_path)
    assert handle_of(order.update["ipc_handles"][0]["GPU-1"]) == handle
    register()
    worker_half = WeightTransferEngineFactory._registry["rlx_ipc"]()
    worker = object.__new__(worker_half)
    assert worker.parse_update_info(dict(order.update)).ipc_handles == [{"GPU-1": handle}]


def test_a_model_that_vllm_cannot_run_on_a_cpu_is_refused_before_it_starts(tmp_path: Path):
    from tiny_llama import save_tiny_llama

    save_tiny_llama(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["hidden_size"] == 32
    with pytest.raises(ConfigError, match="no attention for heads of size 8"):
        create(EngineSpec(name="w", model=str(tmp_path), max_model_len=64))
    with pytest.raises(ConfigError, match="option 'no_such' is unknown"):
        create(EngineSpec(name="w", model=str(tmp_path), options={"no_such": 1}))
