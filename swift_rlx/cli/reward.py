"""`swift-rlx reward`: serve rewards to runs on this machine or others, and start a package of one's own."""

from __future__ import annotations

import argparse

from swift_rlx.cli import reward_new, reward_serve

HELP = "serve rewards, or start a reward package"
EXAMPLE = """\
example:
    swift-rlx reward serve --reward comment_bonus --port 8101
    swift-rlx reward new my_reward
"""
COMMANDS = {"serve": reward_serve, "new": reward_new}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two commands."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.HELP,
            description=f"{command.HELP[0].upper()}{command.HELP[1:]}.",
            epilog=command.EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.set_defaults(run_reward=command.run)


def run(options: argparse.Namespace) -> int:
    """The chosen one."""
    code: int = options.run_reward(options)
    return code
