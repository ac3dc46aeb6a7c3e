"""`python -m swift_rlx rlhf [config.yaml] ...`: `swift rlhf` for installs whose `.pth` file is not read.

The `swift` command starts a child Python, and that child must find the import hook by itself. Here the hook
is put in place first and `rlhf` runs in the same process. With `NPROC_PER_NODE` or `NNODES` set, torchrun
is started, as `swift` does it; `torchrun -m swift_rlx rlhf ...` works as well.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from swift_rlx import _boot

_boot.install()  # here, so that a process spawned by multiprocessing has it too

USAGE = """\
usage: python -m swift_rlx rlhf [config.yaml | config.json] [arguments of `swift rlhf`]

The same as `swift rlhf`, for installs in which the import hook of swift-rlx is not active (pip install
--target, PYTHONPATH, zip files). Example:

    python -m swift_rlx rlhf --rlhf_type rloo --model Qwen/Qwen2.5-0.5B-Instruct --dataset data.jsonl \\
        --reward_funcs format
"""


def main(argv: list[str]) -> None:
    """Run `rlhf`; every other sub-command is refused with one sentence and exit code 2."""
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        sys.exit(0 if argv else 2)
    command, *arguments = argv
    if command != "rlhf":
        _refuse(
            f"'{command}' is not a command of swift_rlx, which runs 'rlhf' only: run `swift {command} ...`"
        )
    if arguments and arguments[0].endswith((".yaml", ".yml", ".json")) and not os.path.isfile(arguments[0]):
        _refuse(f"the configuration file '{arguments[0]}' does not exist")
    try:
        from swift.cli.main import get_torchrun_args, parse_yaml_args
    except ModuleNotFoundError as error:
        if error.name not in ("swift", "swift.cli", "swift.cli.main"):
            raise
        _refuse(f"ms-swift is not installed for {sys.executable}: run `pip install ms-swift`")
    parse_yaml_args(arguments)
    torchrun = get_torchrun_args()
    if torchrun is not None and "LOCAL_RANK" not in os.environ:  # torchrun sets it in the processes it starts
        launcher = [sys.executable, "-m", "torch.distributed.run", *torchrun, "-m", "swift_rlx"]
        os.execv(sys.executable, [*launcher, "rlhf", *arguments])
    _run_rlhf(arguments)


def _run_rlhf(arguments: list[str]) -> None:
    from swift.cli.utils import try_use_single_device_mode

    try_use_single_device_mode()
    from swift.pipelines import rlhf_main

    from swift_rlx._hooks import hooks

    reason = hooks.why_not_live("swift_rlx")
    if reason is not None:
        _refuse(reason)
    sys.argv[1:] = arguments  # as `swift rlhf` has it: with the flags of a configuration file
    rlhf_main(arguments)


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"error: {sentence}\n")
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
