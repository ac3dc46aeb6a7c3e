"""`swift-rlx store`: look into a store of scored trajectories, and work on it."""

from __future__ import annotations

import argparse

from swift_rlx.cli import store_exchange, store_files, store_generate, store_rewards

HELP = "look into a store of trajectories, fill it from logs or with candidates, score it, and export it"
EXAMPLE = """\
example:
    swift-rlx store import answers.store log.jsonl --columns prompt=question answer=output --model Qwen/Qwen2.5-0.5B
    swift-rlx store generate answers.store prompts.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --temperatures 0.5 0.7 1
    swift-rlx store score answers.store --rewards accuracy format --weights 1 0.2
    swift-rlx store info answers.store
    swift-rlx store export answers.store answers.jsonl

Every command has its own --help. docs/en/trajectory_store.md explains them.
"""
COMMANDS = {
    **store_files.COMMANDS,
    **store_exchange.COMMANDS,
    **store_generate.COMMANDS,
    **store_rewards.COMMANDS,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A command of its own for each thing to do."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=f"example:\n    swift-rlx store {name} {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("store", help="directory, or URL that fsspec knows, such as s3://bucket/folder")
        command.add_arguments(sub)
        sub.set_defaults(store_command=command.run)


def run(options: argparse.Namespace) -> int:
    """Run the command of the store."""
    code: int = options.store_command(options)
    return code
