"""Rollout workers in processes of their own on this machine, and the weights that they are given.

    directory = WeightDirectory(needed_bytes=needed_bytes(model_bytes, workers=2))
    workers = [
        WorkerProcess(EngineSpec("transformers", model), name=f"worker-{i}", run_directory=output / "rlx")
        for i in range(2)
    ]
    await asyncio.gather(*(worker.start() for worker in workers))
    async with RolloutScheduler(config, workers, prompts, score) as scheduler:
        while (batch := await scheduler.next_batch()) is not None:
            train(batch)
            with directory.new(version, WeightKind.FULL) as folder:
                save_weights(folder)
            scheduler.publish(WeightFiles(WeightKind.FULL, str(directory.path(version)), probe))
            directory.keep_only(scheduler.needed_versions)
    directory.remove()

Whatever ends the trainer, no process and nothing in shared memory is left behind (`guardian.py`).
"""

from swift_rlx.cluster.weight_directory import WeightDirectory, needed_bytes
from swift_rlx.cluster.worker_process import WorkerProcess

__all__ = ["WeightDirectory", "WorkerProcess", "needed_bytes"]
