"""Gloo's process group is destroyed when the process ends, while the interpreter is still whole.

A worker thread of gloo wakes whoever waits for a collective first and drops the collective's tensors afterwards.
To drop a tensor that Python knows it takes the GIL, and a thread that waits for the GIL when the interpreter begins
to finalize is ended inside a C++ destructor: `terminate called without an active exception`, SIGABRT, and torchrun
reports a training that went well as failed (pytorch/pytorch#190489). It takes a busy machine, because the last
collective is only milliseconds away from the end, and nothing in ms-swift or transformers destroys the group.

NCCL is left as it is: to destroy its group can mean to wait for a peer that has gone.
"""

import atexit
import gc
import weakref
from typing import Any

import torch.distributed as dist

_trained: "weakref.WeakSet[Any]" = weakref.WeakSet()


def leave_gloo_group() -> None:
    """Join the worker threads of gloo, if the default group is gloo's. No rank waits for another one.

    Gloo joins them in the group's destructor alone, so that nothing but torch itself may hold the group when torch
    gives it up. The last other holder is the DDP module, and it has to go first: torch gives up with the GIL
    released, DDP while it holds the GIL that a worker may wait for.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo"):
        return
    gc.collect()
    for trainer in _trained:  # those that a script still holds
        trainer.model_wrapped = trainer.model
        trainer.accelerator.free_memory()  # collects too
    dist.destroy_process_group()


class ProcessGroupMixin:
    """Leaves the group at the end of the process if the last training of this process ended well.

    After an error a peer may be gone and a collective without an end; then nothing is done.
    """

    def train(self, *args: Any, **kwargs: Any) -> Any:
        atexit.unregister(leave_gloo_group)
        result = super().train(*args, **kwargs)
        _trained.add(self)
        atexit.register(leave_gloo_group)
        return result
