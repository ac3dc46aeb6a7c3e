"""Which accelerators the rollout workers get: pure arithmetic on counts, before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

from swift_rlx.errors import ConfigError

SHARED_MEMORY_SHARE = 0.45
"""The largest `--vllm_gpu_memory_utilization` at which a worker may share a card with a rank."""
WORKERS_PER_CORE = 4
"""More would only wait for each other, each with the weights in memory."""


@dataclass(frozen=True)
class Machine:
    """What there is: the accelerators that this node's processes may use, in order, and the training ranks on it.

    Rank r trains on `accelerators[r]`, as torchrun and ms-swift place it. Empty: the CPU. `is_restricted`: the user
    named them with CUDA_VISIBLE_DEVICES, so that there may be more, for the workers. `cores`: that they may run on.
    """

    accelerators: tuple[str, ...]
    ranks: int
    is_restricted: bool = False
    cores: int = 1

    @property
    def most_workers(self) -> int:
        """How many may generate on the CPU."""
        return WORKERS_PER_CORE * self.cores


def place_workers(
    machine: Machine,
    workers: int,
    wanted: Sequence[str],
    per_worker: int = 1,
    memory_share: float | None = None,
) -> list[tuple[str, ...]]:
    """Accelerator ids of each worker; empty tuples on the CPU.

    `wanted`: `--rollout_devices`; empty: those that no rank trains on. `memory_share`: what the user gave for
    `--vllm_gpu_memory_utilization`.

    Raises ConfigError: no free accelerator, too few of them, one that does not exist, or one that a rank trains on
    without room for both; on the CPU, more workers than the cores carry.
    """
    if not machine.accelerators:
        if wanted:
            raise ConfigError(
                f"--rollout_devices {','.join(wanted)} is refused: this machine shows no accelerator; drop the flag"
                " to run the workers on the CPU"
            )
        if workers > machine.most_workers:
            raise ConfigError(
                f"--rollout_workers {workers} is refused: without an accelerator at most {machine.most_workers} may"
                f" share the {machine.cores} core(s) of this run; lower it"
            )
        return [()] * workers
    taken = machine.accelerators[: machine.ranks]
    given = tuple(wanted) or machine.accelerators[machine.ranks :]
    unknown = [device for device in given if device not in machine.accelerators]
    if unknown and not machine.is_restricted:
        raise ConfigError(
            f"--rollout_devices {','.join(wanted)} is refused: accelerator {unknown[0]} is not among the visible ones"
            f" ({','.join(machine.accelerators)})"
        )
    shared = [device for device in given if device in taken]
    may_share = memory_share is not None and memory_share <= SHARED_MEMORY_SHARE
    if not given and may_share:
        given = shared = taken  # type: ignore[assignment]
    if not given or (shared and not may_share):
        raise ConfigError(_no_room(machine, taken, shared))
    needed = workers * per_worker
    if len(given) < needed:
        raise ConfigError(
            f"{workers} rollout workers of {per_worker} accelerator(s) each need {needed}, and there are {len(given)}"
            f" ({','.join(given)}); lower --rollout_workers or --vllm_tensor_parallel_size, or give more"
            " --rollout_devices"
        )
    return [tuple(given[at : at + per_worker]) for at in range(0, needed, per_worker)]


def training_devices(
    machine: Machine, wanted: Sequence[str], workers: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """What the training processes may see, so that none of them spreads over the workers' accelerators.

    With `--rollout_devices` the others, as many for each rank: where that is more than one, ms-swift splits the model
    over them. Without it, or with shared ones, one a rank.
    """
    taken = {device for worker in workers for device in worker}
    others = tuple(device for device in machine.accelerators if device not in taken)
    per_rank = len(others) // machine.ranks if wanted else 0
    return others[: per_rank * machine.ranks] if per_rank else machine.accelerators[: machine.ranks]


def _no_room(machine: Machine, taken: Sequence[str], shared: Sequence[str]) -> str:
    what = (
        f"--rollout_devices names {','.join(shared)}, on which a rank trains"
        if shared
        else f"all {len(machine.accelerators)} visible accelerators ({','.join(taken)}) are taken by training ranks"
    )
    return (
        f"there is no accelerator for the rollout workers: {what}. Train on fewer ranks (NPROC_PER_NODE): the workers"
        " get the accelerators that follow, or those of --rollout_devices; or share a card with"
        f" --vllm_gpu_memory_utilization {SHARED_MEMORY_SHARE} or less; or use --async_rollout false, which generates"
        " on the ranks themselves"
    )
