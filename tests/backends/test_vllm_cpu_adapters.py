"""Adapters on a CPU: what is added to a layer's outputs is what vLLM's own way adds, and an engine uses ours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from swift_rlx.backends import EngineSpec
from swift_rlx.backends.vllm_environment import environment

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

RANK, INPUTS, SLICES, SLOTS = 4, 10, (6, 3), 3
ASKED = """
from swift_rlx.backends.vllm_plugin import register
from vllm.platforms.cpu import CpuPlatform
register()
print(CpuPlatform.get_punica_wrapper())
"""


@pytest.mark.parametrize(
    "adapters", [(7, 7, 7, 7, 7), (7, 7, 9, 7, 8), (8, 0, 8, 0, 0), (0, 0, 0, 0, 0)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_row_gets_the_part_of_its_own_adapter(adapters, dtype):
    import torch
    from vllm.lora.layers import LoRAMapping

    from swift_rlx.backends.vllm_cpu_adapters import AdapterProducts

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    x = torch.randn(len(adapters), INPUTS, dtype=kind)
    y = torch.randn(len(adapters), sum(SLICES), dtype=kind)
    a = tuple(torch.randn(SLOTS, 1, RANK, INPUTS, dtype=kind) for _ in SLICES)
    b = tuple(torch.randn(SLOTS, 1, size, RANK, dtype=kind) for size in SLICES)
    slots = [8, 7, 9]
    expected = y.double().clone()
    for row, adapter in enumerate(adapters):
        if adapter:
            slot = slots.index(adapter)
            parts = [
                two[slot, 0].double() @ (one[slot, 0].double() @ x[row].double())
                for one, two in zip(a, b, strict=True)
            ]
            expected[row] += 0.5 * torch.cat(parts)
    products = AdapterProducts(64, 64, "cpu")
    products.update_metadata(LoRAMapping(adapters, adapters, is_prefill=True), slots, SLOTS, 100)
    products.add_lora_linear(y, x, a, b, 0.5, SLICES)
    tolerance = 1e-5 if dtype == "float32" else 0.2
    assert (y.double() - expected).abs().max() < tolerance


def test_our_processes_have_it_and_those_of_others_do_not():
    ours = environment(EngineSpec(name="w", model="/nowhere"), {})
    found = {}
    for who, variables in (("ours", ours), ("others", {})):
        base = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        done = subprocess.run(
            [sys.executable, "-c", ASKED], env=base | variables, capture_output=True, text=True, check=True
        )
        found[who] = done.stdout.split()[-1]
    assert found["ours"] == "swift_rlx.backends.vllm_cpu_adapters.AdapterProducts"
    assert found["others"].startswith("vllm.")
