"""One contestant of the benchmark of hidden generation: trains, and writes where the trainer's time went.

python hidden_generation_run.py NAME SIGMA TRAIN_S GENERATE_S STEPS OUTPUT
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import runs
from sleeping_engine import Script
from tiny_llama import save_tiny_llama

PROMPTS, GROUP, TOKENS = 8, 4, 48
WARM_UP_STEPS = 2
DRAIN_STEPS = 4
"""At the end, when nothing is left to be generated ahead: each run has them once, however long it is."""


def scaled_script(sigma: float, generate_s: float, steps: int) -> Script:
    """The slowest answer of a batch takes `generate_s` on average, over those of the measured steps."""
    unit = Script(1.0, sigma, TOKENS)
    batches = [
        max(
            unit.latency_s(0, PROMPTS * batch + at, member)
            for at in range(PROMPTS)
            for member in range(GROUP)
        )
        for batch in range(WARM_UP_STEPS, steps)
    ]
    return Script(generate_s / statistics.mean(batches), sigma, TOKENS)


class Stopwatch:
    """Seconds of the main thread by kind, of each optimizer step: train, wait, publish, and the CPU time of train."""

    def __init__(self, train_s: float) -> None:
        self.train_s = train_s
        self.steps: list[Counter[str]] = [Counter()]
        self.ends: list[float] = []
        self.cpu: list[float] = []
        """CPU seconds of the main thread until the end of each step."""

    def timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            begin, cpu = time.monotonic(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.steps[-1][kind] += time.monotonic() - begin
                self.steps[-1]["train cpu"] += (time.thread_time() - cpu) * (kind == "train")

        return run

    def padded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The optimizer's step, after which forward, backward and optimizer have taken `train_s`."""

        def run(*args: Any, **kwargs: Any) -> Any:
            begin = time.monotonic()
            result = function(*args, **kwargs)
            left = self.train_s - self.steps[-1]["train"] - (time.monotonic() - begin)
            if left > 0:
                time.sleep(left)
            self.steps[-1]["train"] += time.monotonic() - begin
            return result

        return run

    def end_step(self) -> None:
        self.ends.append(time.monotonic())
        self.cpu.append(time.thread_time())
        self.steps.append(Counter())

    def shares(self) -> dict[str, Any]:
        """From the end of the warm-up to the begin of the drain; `busy_to_end`: to the end of the last step."""
        last = len(self.ends) - DRAIN_STEPS
        wall = self.ends[last - 1] - self.ends[WARM_UP_STEPS - 1]
        measured = self.steps[WARM_UP_STEPS:last]
        to_end = sum(step["train"] for step in self.steps[WARM_UP_STEPS : len(self.ends)])
        spent = {kind: sum(step[kind] for step in measured) / wall for kind in ("train", "wait", "publish")}
        cpu = self.cpu[last - 1] - self.cpu[WARM_UP_STEPS - 1] - sum(step["train cpu"] for step in measured)
        steps_s = [
            end - begin
            for begin, end in zip(
                self.ends[WARM_UP_STEPS - 1 : last - 1], self.ends[WARM_UP_STEPS:last], strict=True
            )
        ]
        return {
            "steps_per_h": 3600 * len(measured) / wall,
            "median_step_s": statistics.median(steps_s),
            "busy": spent["train"],
            "busy_to_end": to_end / (self.ends[-1] - self.ends[WARM_UP_STEPS - 1]),
            "wait": spent["wait"],
            "publish": spent["publish"],
            "other": 1.0 - sum(spent.values()),
            "other_s": wall * (1.0 - spent["train"] - spent["wait"]) / len(measured),
            "other_cpu_s": cpu / len(measured),
            "longest_train_s": max(step["train"] for step in measured),
            "waits_s": [round(step["wait"], 3) for step in measured],
        }


class ScriptedBatches:
    """Generation in the trainer's own process: it sleeps as long as the slowest answer of the batch takes.

    `ahead`: as stock's `async_generate`, which starts the next batch when it hands one over.
    """

    def __init__(self, script: Script, ahead: bool) -> None:
        self.script = script
        self.ahead = ahead
        self.number = 0
        self.ready_s: float | None = None

    def batch_s(self, number: int) -> float:
        indices = range(number * PROMPTS, (number + 1) * PROMPTS)
        return max(self.script.latency_s(0, at, member) for at in indices for member in range(GROUP))

    def wait(self) -> None:
        """Until the batch is there."""
        if self.ready_s is None:
            self.ready_s = time.monotonic() + self.batch_s(self.number)
        time.sleep(max(self.ready_s - time.monotonic(), 0.0))
        self.number += 1
        self.ready_s = time.monotonic() + self.batch_s(self.number) if self.ahead else None

    def install(self, trainer: Any) -> None:
        def generate(samples: list[Any]) -> list[Any]:
            self.wait()
            for position, sample in enumerate(trainer._preprocess_inputs(samples)):
                ids = self.script.token_ids(sample.extra["row"], position % GROUP)
                sample.messages.append({"role": "assistant", "content": trainer.tokenizer.decode(ids)})
                sample.response_token_ids = ids
                sample.finish_reason, sample.add_eos = "length", False
            return samples

        trainer._generate_completions = generate


class Ages:
    """Staleness of the trained tokens, and how many tokens of the batches trained."""

    def __init__(self) -> None:
        self.ages: Counter[int] = Counter()
        self.tokens = 0

    def watch(self) -> None:
        from swift_rlx.trainers import async_rollout

        decode = async_rollout.decode_batch

        def seen(message: bytes) -> Any:
            batch = decode(message)
            for row in batch.rows:
                fresh, ages = np.frombuffer(row.fresh, bool), np.frombuffer(row.staleness, "<i4")
                self.tokens += len(fresh)
                self.ages.update(ages[fresh].tolist())
            return batch

        async_rollout.decode_batch = seen

    def values(self, ahead: bool) -> dict[str, float]:
        trained = self.ages.total()
        if not trained:  # generated in this process: all tokens of a batch have one age
            return {"staleness_mean": float(ahead), "staleness_max": int(ahead), "in_mask": 1.0}
        total = sum(age * count for age, count in self.ages.items())
        return {
            "staleness_mean": total / trained,
            "staleness_max": max(self.ages),
            "in_mask": trained / self.tokens,
        }


def measure(trainer: Any, stopwatch: Stopwatch) -> None:
    """Put the stopwatch around the parts of the trainer's step."""
    from transformers import TrainerCallback

    from swift_rlx.trainers.pipeline import RolloutPipeline

    class EndOfStep(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            stopwatch.end_step()

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            trainer.optimizer.step = stopwatch.padded(trainer.optimizer.step)

    trainer.add_callback(EndOfStep())
    trainer.compute_loss = stopwatch.timed("train", trainer.compute_loss)
    trainer.accelerator.backward = stopwatch.timed("train", trainer.accelerator.backward)
    if trainer.args.async_rollout:
        trainer.publish_weights = stopwatch.timed("publish", trainer.publish_weights)
        RolloutPipeline.pick_up = stopwatch.timed("wait", RolloutPipeline.pick_up)
    else:
        trainer._generate_completions = stopwatch.timed("wait", trainer._generate_completions)


def train(
    name: str, script: Script, train_s: float, steps: int, folder: Path, **changes: Any
) -> dict[str, float]:
    """Run the contestant, with `changes` of its options; where the time went."""
    from swift import RLHFArguments
    from swift.pipelines.train.rlhf import SwiftRLHF

    stopwatch, ages, ahead = Stopwatch(train_s), Ages(), name == "one step ahead"
    ages.watch()

    class Measured(SwiftRLHF):
        def train(self, trainer: Any) -> Any:
            if not trainer.args.async_rollout:
                ScriptedBatches(script, ahead).install(trainer)
            measure(trainer, stopwatch)
            return super().train(trainer)

    Measured(RLHFArguments(**(options(name, steps, folder) | changes))).main()
    return stopwatch.shares() | ages.values(ahead)


def options(name: str, steps: int, folder: Path) -> dict[str, Any]:
    """Of `swift rlhf`."""
    model, data = folder / "model", folder / "rows.jsonl"
    save_tiny_llama(model)
    rows = [
        {"messages": [{"role": "user", "content": f"Say {row}"}], "row": row}
        for row in range(PROMPTS * (steps + DRAIN_STEPS + 1))
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    changes: dict[str, Any] = {
        "rlhf_type": "rloo",
        "beta": 0.0,
        "reward_funcs": [variety],
        "num_generations": GROUP,
        "per_device_train_batch_size": PROMPTS * GROUP,
        "gradient_accumulation_steps": 1,
        "max_completion_length": TOKENS,
        "max_steps": steps + DRAIN_STEPS,
        "dataset_shuffle": False,
        "report_to": ["none"],
    }
    if name.startswith("staleness "):
        changes |= {
            "async_rollout": True,
            "off_policy_correction": "token_truncate",
            "max_staleness": int(name.split()[1]),
            "rollout_backend": "sleeping_engine:create",
            "rollout_workers": 2,
            "rollout_max_inflight": 9 * PROMPTS * GROUP // 2,
        }
    return runs.arguments(model, data, folder / "output", **changes)


def variety(completions: list[str], **_: Any) -> list[float]:
    """How many different characters an answer has."""
    return [float(len(set(text))) for text in completions]


def main() -> None:
    name, sigma, train_s, generate_s, steps, output = sys.argv[1:]
    script = scaled_script(float(sigma), float(generate_s), int(steps))
    script.write()
    with tempfile.TemporaryDirectory() as folder:
        result = train(name, script, float(train_s), int(steps), Path(folder))
    Path(output).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
