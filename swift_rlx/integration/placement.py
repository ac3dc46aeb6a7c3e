"""Where this machine's ranks train and its workers generate, settled before ms-swift touches a device."""

import os
import sys
from typing import Any

import torch
from swift.utils import get_logger

from swift_rlx.integration.devices import Machine, place_workers, training_devices
from swift_rlx.integration.rollout_fields import device_ids, visible_devices

logger = get_logger()
VISIBLE = "CUDA_VISIBLE_DEVICES"
_chosen: dict[str, str | None] = {}
"""What the variable was set to, and before that was `given`."""


def this_machine(use_cpu: bool) -> Machine:
    """The accelerators and cores that this process may use, and the ranks of this node."""
    count = 0 if use_cpu else torch.cuda.device_count()
    named = visible_devices()
    visible = named if named is not None and len(named) == count else tuple(map(str, range(count)))
    ranks, cores = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), len(os.sched_getaffinity(0))
    return Machine(visible, ranks, named is not None, cores)


def worker_devices(args: Any, machine: Machine) -> list[tuple[str, ...]]:
    """Accelerator ids of each rollout worker. Raises ConfigError as `place_workers` does."""
    options = args.rlx_engine_options
    per_worker = int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))
    wanted = device_ids(args.rollout_devices)
    return place_workers(
        machine, args.rollout_workers, wanted, per_worker, options.get("gpu_memory_utilization")
    )


def settle_devices(args: Any) -> None:
    """Give the workers their accelerators, and take them out of this process's sight.

    Left visible, ms-swift would spread the model over them. Nothing is changed in the web page's process, which
    builds arguments for others, nor once CUDA is in use. Arguments that are built again find what the user had set.
    """
    if not torch.cuda.is_initialized():
        _take_back_choice()
    if args.rollout_endpoints:  # the servers have accelerators of their own
        args.rlx_worker_devices = []
        return
    machine = this_machine(args.use_cpu)
    workers = worker_devices(args, machine)
    args.rlx_worker_devices = [list(ids) for ids in workers]
    if not machine.accelerators or "swift.ui" in sys.modules or torch.cuda.is_initialized():
        return
    training = training_devices(machine, device_ids(args.rollout_devices), workers)
    _chosen.update(given=os.environ.get(VISIBLE), ours=",".join(training))
    os.environ[VISIBLE] = ",".join(training)
    logger.info(f"training on accelerator {os.environ[VISIBLE]}, rollout workers on {workers}")


def _take_back_choice() -> None:
    if _chosen and os.environ.get(VISIBLE) == _chosen["ours"]:
        os.environ.pop(VISIBLE)
        if _chosen["given"] is not None:
            os.environ[VISIBLE] = _chosen["given"]
    _chosen.clear()
