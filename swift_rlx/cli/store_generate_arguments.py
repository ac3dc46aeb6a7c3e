"""The arguments of `swift-rlx store generate`."""

from __future__ import annotations

import argparse

from swift_rlx.cli import store_rewards
from swift_rlx.cli.store_command import file_arguments, model_arguments

DTYPES = ("float32", "bfloat16", "float16")


def generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Which prompts, which model, how it is sampled, by which workers, and what scores the answers."""
    add = parser.add_argument
    file_arguments(
        parser, holds="prompts", meanings="prompt (text or messages), id; the others stay with the prompt"
    )
    model_arguments(parser, "that answers", required=True)
    add("--system", help="system prompt of those that have none")
    add("--n", type=int, default=4, help="candidates a prompt (default %(default)s)")
    add("--seed", type=int, default=0, help="of the sampling (default %(default)s)")
    _sampling_arguments(parser)
    _worker_arguments(parser)
    store_rewards.source_arguments(parser)
    store_rewards.caller_arguments(parser)
    add("--reward-workers", type=int, default=1, help="processes that call the rewards (default %(default)s)")
    parser.set_defaults(stored=[], again=False)


def _sampling_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--temperatures",
        type=float,
        nargs="+",
        default=[1.0],
        help="candidate i takes number i of these, and begins again behind the last one (default 1)",
    )
    add("--top-p", type=float, default=1.0, help="default %(default)g: off")
    add("--top-k", type=int, default=0, help="default %(default)s: off")
    add("--min-p", type=float, default=0.0, help="default %(default)g: off")
    add("--repetition-penalty", type=float, default=1.0, help="default %(default)g: off")
    add("--max-tokens", type=int, default=512, help="of an answer (default %(default)s)")
    add("--stop", nargs="+", default=[], metavar="TEXT", help="what ends an answer, beside the template's")


def _worker_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--backend",
        default="auto",
        help="auto (vllm if it is installed and runs on this device, else transformers), transformers, vllm, or the"
        " name of an installed backend (default %(default)s)",
    )
    add("--workers", type=int, default=1, help="processes that generate (default %(default)s)")
    add(
        "--max-inflight",
        type=int,
        default=256,
        help="answers that a worker makes at a time (default %(default)s)",
    )
    add("--dtype", choices=DTYPES, help="of the weights (default: as the model's configuration says)")
    add(
        "--engine-options",
        default="{}",
        metavar="JSON",
        help="arguments of vLLM's engine, such as '{\"tensor_parallel_size\": 2}'",
    )
    add("--timeout-s", type=float, default=3600.0, help="of one answer (default %(default)g)")
    add(
        "--seal-s",
        type=float,
        default=60.0,
        help="seconds between two rounds: what a kill can lose at most (default %(default)g)",
    )
