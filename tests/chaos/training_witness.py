"""An external plugin of `swift rlhf` that writes down what is trained, in the training step, and what is noticed.

CHAOS_FOLDER: two files, each line written at once by O_APPEND, so that a killed process leaves whole lines.

    trained.jsonl   one line a micro-batch, before its backward: rows as the loss gets them, read from the tensors
    events.jsonl    a worker was lost, taken out, is back, answered, was sent a request, gave it back; a request failed,
                    was finished; times of the system's monotonic clock

CHAOS_LIFE: the number of this start of the run. CHAOS_STEP_S: seconds that each optimizer step takes longer, in which
the processor is left to others, as it is with an accelerator.
"""

import asyncio
import hashlib
import json
import os
import re
import time
import zlib
from pathlib import Path
from typing import Any

from swift_rlx.cluster.hosted_process import HostedProcess
from swift_rlx.scheduler.generation import Generation
from swift_rlx.scheduler.resume import capture
from swift_rlx.scheduler.routing import Router
from swift_rlx.trainers.rlx_trainer import RLXTrainer
from swift_rlx.types import Fate

FOLDER = Path(os.environ["CHAOS_FOLDER"])
LIFE = int(os.environ["CHAOS_LIFE"])
STEP_S = float(os.environ["CHAOS_STEP_S"])
PROMPT = re.compile(r"say (\d+)")


def append(name: str, line: dict[str, Any]) -> None:
    """One write to a file that many starts of the run append to."""
    descriptor = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(line | {"life": LIFE}) + "\n").encode())
    finally:
        os.close(descriptor)


def note(event: str, **facts: Any) -> None:
    """An event, now."""
    append("events.jsonl", {"event": event, "at_s": time.monotonic(), **facts})


def micro_batch(trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the loss is about to be made of."""
    batch, ids = inputs["grpo_batch"], inputs["model_inputs"]["input_ids"]
    in_loss = batch.completion_mask.bool() & batch.loss_mask.bool()
    tokens, ages = in_loss.sum(1).tolist(), batch.staleness[in_loss]
    rows = []
    for row, count in zip(ids, tokens, strict=True):
        found = PROMPT.search(trainer.template.tokenizer.decode(row))
        assert found is not None, "a row without the prompt of a test"
        rows.append({"prompt": int(found[1]), "ids": zlib.crc32(row.numpy().tobytes()), "tokens": count})
    picked = b"".join(row.token_ids + row.logprobs + row.fresh for row in trainer._picked.rows)
    return {
        "at_s": time.monotonic(),
        "step": trainer.state.global_step,
        "incarnation": trainer.policy_version.incarnation,
        "rows": rows,
        "oldest": int(ages.max()) if len(ages) else 0,
        "batch": hashlib.sha256(picked).hexdigest(),
        **asyncio.run_coroutine_threadsafe(
            tokens_of(trainer.pipeline.thread), trainer.pipeline.thread.loop
        ).result(),
    }


async def tokens_of(thread: Any) -> dict[str, int]:
    """Generated a second time so far, and of answers that a crash would now have generated again."""
    run = thread.scheduler._state
    finished = capture(run).tokens[Fate.IN_FLIGHT]
    return {"repeated": run.repeated_tokens, "unfinished": run.ledger.tokens(Fate.IN_FLIGHT) - finished}


def watch_training() -> None:
    """Each micro-batch, and the pace of the steps."""
    compute_loss, step = RLXTrainer.compute_loss, RLXTrainer.report_optimizer_step

    def watched(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.model.training:
            append("trained.jsonl", micro_batch(self, inputs[0] if isinstance(inputs, list) else inputs))
        return compute_loss(self, model, inputs, *args, **kwargs)

    def paced(self: Any) -> None:
        step(self)
        time.sleep(STEP_S)

    RLXTrainer.compute_loss = watched  # type: ignore[method-assign]
    RLXTrainer.report_optimizer_step = paced  # type: ignore[method-assign]


def watch_workers() -> None:
    """Their ends, and what the scheduler makes of them."""
    fail, eject, readmit, succeed = HostedProcess._fail, Router.eject, Router.readmit, Router.succeeded
    reserve, release = Router.reserve, Router.release
    silent = set()
    """Workers without an answer since they are back; what they ended of before is no sign that they are well."""

    def lost(self: Any, reason: str) -> None:
        if self._reason is None and not self._is_closing:
            note("lost", pid=self.pid, worker=self._launch.name, calls=len(self._pending), reason=reason)
        fail(self, reason)

    def out(self: Any, worker: Any) -> bool:
        if is_new := eject(self, worker):
            note("out", worker=worker.name)
        return is_new

    def back(self: Any, worker: Any) -> None:
        silent.add(worker.name)
        note("back", worker=worker.name)
        readmit(self, worker)

    def answered(self: Any, worker: Any) -> None:
        if worker.name in silent:
            silent.discard(worker.name)
            note("answered", worker=worker.name)
        succeed(self, worker)

    def sent(self: Any, *args: Any, **options: Any) -> Any:
        worker = reserve(self, *args, **options)
        if worker is not None:
            note("sent", worker=worker.name)
        return worker

    def ended(self: Any, worker: Any, *args: Any, **options: Any) -> None:
        note("ended", worker=worker.name)
        release(self, worker, *args, **options)

    HostedProcess._fail = lost  # type: ignore[method-assign]
    Router.reserve, Router.release = sent, ended  # type: ignore[method-assign]
    Router.eject, Router.readmit, Router.succeeded = out, back, answered  # type: ignore[method-assign]


def watch_requests() -> None:
    """Those that fail, and when each is finished."""
    fail, answer = Generation._failed, Generation._answered

    def name(job: Any) -> str:
        return f"{job.group.prompt.epoch}/{job.group.prompt.index}/{job.member}"

    def failed(self: Any, job: Any, worker: Any, error: Any) -> None:
        note("failed", worker=worker.name, request=name(job))
        fail(self, job, worker, error)

    def finished(self: Any, job: Any, worker: Any, completion: Any) -> None:
        note("finished", worker=worker.name, request=name(job))
        answer(self, job, worker, completion)

    Generation._failed, Generation._answered = failed, finished  # type: ignore[method-assign]


watch_training()
watch_workers()
watch_requests()
