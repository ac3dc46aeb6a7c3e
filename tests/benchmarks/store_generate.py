"""What `swift-rlx store generate` gains over one answer at a time.

Run it as a script. It prints a line for each way, writes a JSON file and exits with 1 if the goal is missed.

    one at a time   `model.generate` of transformers, called for one answer after the other
    store generate  the scheduler with one worker process on the engine `transformers`, into a store on this disk

Both ways answer the same prompts with the same model (a random llama of two layers, in float32), temperatures, top-p
and length, with one thread each; the store's way has a process beside the worker's, which encodes, decodes and writes.
One at a time is measured on a share of the prompts, half of it before the other way and half of it after. Rates are
answers a second from the moment the model is loaded; what it takes to get there is told beside them, and the ratio with
it for the number of answers that the store got.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

START_S = time.perf_counter()
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

RESULT = Path(__file__).resolve().parent / "results" / "store_generate.json"
MIN_RATIO = 15.0
TEMPERATURES, TOP_P, SEED = (0.5, 0.7, 1.0), 0.9, 0


def question(number: int) -> str:
    return f"Say the number {number} in other words."


def of_store(options: argparse.Namespace) -> dict[str, float]:
    """All candidates of all prompts."""
    from swift_rlx.backends import Backend
    from swift_rlx.candidates import CandidateSettings, PromptColumns, generate, read_prompts
    from swift_rlx.integration.candidate_model import CandidateModel, WorkerPlan
    from swift_rlx.store import TrajectoryStore
    from swift_rlx.types import PolicyVersion, SamplingParams

    file = options.work / "prompts.jsonl"
    rows = (json.dumps({"prompt": question(number)}) + "\n" for number in range(options.prompts))
    file.write_text("".join(rows), encoding="utf-8")
    model = CandidateModel(str(options.work / "model"), "chatml", model_type="llama")
    ids = model.ends([]).token_ids
    samplings = tuple(SamplingParams(options.tokens, one, TOP_P, stop_token_ids=ids) for one in TEMPERATURES)
    settings = CandidateSettings(options.candidates, samplings, SEED, "transformers")
    crew = model.crew(WorkerPlan("transformers", "float32"), 512, options.work)
    loaded: list[float] = []

    async def start() -> list[Backend]:
        workers = list(await crew.start(PolicyVersion(), None))
        loaded.append(time.perf_counter())
        return workers

    store = TrajectoryStore.create(options.work / "store")
    asked = read_prompts([file], PromptColumns())
    done = generate(store, asked, settings, start, model)
    return measured(loaded[0], done.rows, done.tokens)


def one_at_a_time(options: argparse.Namespace) -> dict[str, float]:
    """The candidates of the prompts from `begin` to `end`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(options.work / "model")
    model = AutoModelForCausalLM.from_pretrained(options.work / "model", dtype="float32").eval()
    loaded, tokens = time.perf_counter(), 0
    for number in range(options.begin, options.end):
        messages = [{"role": "user", "content": question(number)}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        for candidate in range(options.candidates):
            output = model.generate(
                **inputs,
                do_sample=True,
                temperature=TEMPERATURES[candidate % len(TEMPERATURES)],
                top_p=TOP_P,
                top_k=0,
                max_new_tokens=options.tokens,
            )
            answer = output[0, inputs["input_ids"].shape[1] :]
            tokenizer.decode(answer)
            tokens += len(answer)
    return measured(loaded, (options.end - options.begin) * options.candidates, tokens)


def measured(loaded: float, answers: int, tokens: int) -> dict[str, float]:
    """`loaded`: when the model was there."""
    return {
        "answers": answers,
        "tokens": tokens,
        "load_s": loaded - START_S,
        "seconds": time.perf_counter() - loaded,
    }


PARTS = {"store generate": of_store, "one at a time": one_at_a_time}


def in_process(part: str, options: argparse.Namespace, begin: int = 0, end: int = 0) -> dict[str, float]:
    """A part in a process of its own."""
    words = [sys.executable, __file__, "--part", part, "--work", str(options.work)]
    for name, value in {
        "prompts": options.prompts,
        "candidates": options.candidates,
        "tokens": options.tokens,
        "begin": begin,
        "end": end,
    }.items():
        words += [f"--{name}", str(value)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"'{part}' ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Both ways, one after the other."""
    from tiny_llama import save_tiny_llama

    save_tiny_llama(options.work / "model")
    half = max(1, round(options.share * options.prompts / 2))
    singles = [in_process("one at a time", options, 0, half)]
    ours = in_process("store generate", options)
    singles.append(in_process("one at a time", options, options.prompts - half, options.prompts))
    answers, seconds = (sum(one[name] for one in singles) for name in ("answers", "seconds"))
    theirs = {
        "answers": answers,
        "tokens": sum(one["tokens"] for one in singles),
        "load_s": sum(one["load_s"] for one in singles) / len(singles),
        "seconds": seconds,
        "halves_s": [one["seconds"] for one in singles],
    }
    for way in (ours, theirs):
        way["answers_per_s"] = way["answers"] / way["seconds"]
        way["tokens_per_answer"] = way["tokens"] / way["answers"]
    whole_s = theirs["load_s"] + ours["answers"] / theirs["answers_per_s"]
    return {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_at_start": round(os.getloadavg()[0], 1),
        },
        "setting": {
            "prompts": options.prompts,
            "candidates": options.candidates,
            "max_tokens": options.tokens,
            "temperatures": TEMPERATURES,
            "top_p": TOP_P,
        },
        "min_ratio": MIN_RATIO,
        "store generate": ours,
        "one at a time": theirs,
        "ratio": ours["answers_per_s"] / theirs["answers_per_s"],
        "ratio_with_loading": whole_s / (ours["load_s"] + ours["seconds"]),
    }


def report(result: dict[str, Any]) -> int:
    """A line for each way; the exit code."""
    for name in PARTS:
        way = result[name]
        print(
            f"{name:<16}{way['answers_per_s']:8.1f} answers/s: {way['answers']:,.0f} of"
            f" {way['tokens_per_answer']:.0f} tokens in {way['seconds']:.1f} s, {way['load_s']:.1f} s to load"
        )
    print(f"ratio {result['ratio']:.1f}, with loading {result['ratio_with_loading']:.1f}")
    return 0 if result["ratio"] >= result["min_ratio"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Candidates for a store against one answer at a time.")
    add = parser.add_argument
    add("--prompts", type=int, default=1000)
    add("--candidates", type=int, default=4, help="of a prompt")
    add("--tokens", type=int, default=32, help="of an answer at most")
    add("--share", type=float, default=0.1, help="of the prompts that are answered one at a time")
    add("--output", type=Path, default=RESULT, help="where the JSON file goes")
    add("--part", choices=PARTS, help="run this part alone and print it")
    add("--work", type=Path, help="of --part")
    add("--begin", type=int, help="of --part")
    add("--end", type=int, help="of --part")
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part](options)))
        return 0
    with tempfile.TemporaryDirectory() as work:
        options.work = Path(work)
        result = compare(options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return report(result)


if __name__ == "__main__":
    sys.exit(main())
