"""What it takes until a worker serves new weights: export, write, load, for an adapter and for all weights.

Run it as a script. It prints a table in milliseconds (medians), writes a JSON file, and exits with 1 if an engine
did not serve what it was given. The model is SmolLM2-135M in float32 on the CPU, the files go through shared memory.

    probe     a forward pass of the trainer over 48 tokens
    write     gather, merge where needed, and write the files
    load      the engine takes them
    check     the engine's own log-probs of the 48 tokens

    adapter   LoRA of rank 8 on all linear layers, loaded as an adapter
    merged    the same, from an initialization that changes the base: merged into a copy, all weights published
    full      all weights are trained

Engines run in this process: `transformers`, and `vllm` where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(USE_HF="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).resolve().parent / "results" / "publish_time.json"
MODEL = REPOSITORY / "output" / "quickstart" / "SmolLM2-135M-Instruct"
SHARED_MEMORY = Path("/dev/shm")
ENGINES = ["transformers", *(["vllm"] if importlib.util.find_spec("vllm") else [])]
RANK = 8
PARTS = ("probe", "write", "load", "check")
CASES = {"adapter": True, "merged": "pissa_niter_4", "full": None}  # how LoRA begins; None: without
MOVE = 0.002
BUSY = 0.9  # less CPU time than this per second of wall time: others had the processor


def trainer_of(folder: Path, case: str) -> Any:
    """As much of a trainer as an export needs."""
    import peft
    from sharded_export import stand_in
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    start = CASES[case]
    if start is not None:
        config = peft.LoraConfig(target_modules="all-linear", r=RANK, init_lora_weights=start)
        model = peft.get_peft_model(model, config)
    return stand_in(model, AutoTokenizer.from_pretrained(folder))


def move(model: Any, seed: int) -> None:
    """In the place of an optimizer step."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += MOVE * torch.randn(parameter.shape, generator=generator)


def publish_each(engine: Any, engine_name: str, trainer: Any, rounds: int) -> Iterator[dict[str, float]]:
    """Seconds of each part of a publish, MB, and how far what is served is from what was published, in nats."""
    from swift_rlx.trainers.weight_export import WeightExporter
    from swift_rlx.types import PolicyVersion

    loop = asyncio.new_event_loop()
    exporter = WeightExporter(trainer, engine_name, max_adapter_rank=RANK)
    for step in range(1, rounds + 2):
        move(trainer.model, seed=step)
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="publish-time-") as folder:
            files = exporter.export(folder)
            marks = [time.perf_counter()]
            loop.run_until_complete(engine.publish(PolicyVersion(0, step), files))
            marks.append(time.perf_counter())
            served = loop.run_until_complete(engine.logprobs(files.probe.token_ids))
            marks.append(time.perf_counter())
        cost = exporter.last
        seconds = (cost.probe_s, cost.seconds - cost.probe_s, marks[1] - marks[0], marks[2] - marks[1])
        if step > 1:  # the first one warms up
            yield {
                **dict(zip(PARTS, seconds, strict=True)),
                "mb": cost.nbytes / 1e6,
                "difference": files.probe.difference(served),
                "tolerance": files.probe.tolerance,
            }
    loop.run_until_complete(engine.close())
    loop.close()


def measure(engine_name: str, case: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Medians in milliseconds, and the largest difference."""
    from swift_rlx.backends import EngineSpec

    options = {"gpu_memory_utilization": 0.2} if engine_name == "vllm" else {}
    rank = RANK if case == "adapter" else 0
    spec = EngineSpec(
        engine_name, str(folder), max_model_len=512, max_adapter_rank=rank, max_inflight=8, options=options
    )
    engine = importlib.import_module(f"swift_rlx.backends.{engine_name}_engine").create(spec)
    found = list(publish_each(engine, engine_name, trainer_of(folder, case), rounds))
    medians = {f"{part}_ms": 1000 * statistics.median(one[part] for one in found) for part in PARTS}
    return {
        **medians,
        "total_ms": 1000 * statistics.median(sum(one[part] for part in PARTS) for one in found),
        "mb": found[0]["mb"],
        "difference": max(one["difference"] for one in found),
        "tolerance": found[0]["tolerance"],
    }


def report(result: dict[str, dict[str, Any]]) -> None:
    """The table."""
    print(f"{'':22}{'MB':>8}" + "".join(f"{part:>8}" for part in (*PARTS, "total")) + "   nats")
    for engine, cases in result.items():
        for case, row in cases.items():
            parts = "".join(f"{row[f'{part}_ms']:8.0f}" for part in (*PARTS, "total"))
            print(f"{engine + ' ' + case:22}{row['mb']:8.1f}{parts}   {row['difference']:.0e}")


def main() -> int:
    parser = argparse.ArgumentParser(description="How long publishing weights takes.")
    parser.add_argument("--model", type=Path, default=MODEL, help="a model folder; made if it is not there")
    parser.add_argument("--engines", nargs="+", default=ENGINES, help="those that are measured")
    parser.add_argument("--rounds", type=int, default=5, help="publishes per case; the median counts")
    parser.add_argument("--output", type=Path, default=RESULT, help="where the JSON file goes")
    options = parser.parse_args()
    sys.path[:0] = [str(REPOSITORY / "tests" / "support"), str(REPOSITORY / "examples" / "quickstart")]
    from prepare_model import prepare

    folder = prepare(options.model)
    begin, cpu = time.perf_counter(), os.times()
    published = {
        name: {case: measure(name, case, folder, options.rounds) for case in CASES}
        for name in options.engines
    }
    used = sum(os.times()[:4]) - sum(cpu[:4])
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_per_s": used / (time.perf_counter() - begin),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine, "rounds": options.rounds, "published": published}, indent=2)
    options.output.write_text(text + "\n", encoding="utf-8")
    report(published)
    if machine["cpu_per_s"] < BUSY:
        print("the machine was busy with other work: times are inflated, measure again when it is idle")
    rows = [row for cases in published.values() for row in cases.values()]
    return 0 if all(row["difference"] <= row["tolerance"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
