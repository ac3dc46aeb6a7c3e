"""The thread that owns a transformers model: it decodes answers token by token and obeys between two tokens.

    event loop                                   decoding thread
    submit, abort, call  -- queue of calls -->   obey -> begin what waits -> one token for every batch -> again
    future of a request  <-- call_soon ------    an answer has ended

All requests that wait at a token boundary begin together: each distinct prompt goes through the model once, its
rows are then doubled for the members of its group and join the running batch. A model with a cache of its own
kind decodes each answer alone. New weights send every answer in flight back to those that wait, with the tokens
that it has: it begins again from these, under the new weights.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from swift_rlx.backends.transformers_answer import Answer
from swift_rlx.backends.transformers_batch import MAX_PADDING, PER_TOKEN, TokenBatch, keeps_batches_apart
from swift_rlx.backends.transformers_sampling import draw_rows
from swift_rlx.errors import BackendError, BackendUnavailable, ConfigError, WorkerDied
from swift_rlx.registry import one_line
from swift_rlx.types import FinishReason, PolicyVersion

GATHER_S = 0.002
"""How long an idle thread waits for more requests to begin with the first: a group arrives one by one."""
MAX_PREFILL_TOKENS = 16_384
"""Of a forward over several prompts, padding included: bounds the memory that it takes."""
MAX_PREFILL_TOKENS_CPU = 2_048
"""On a CPU it gains nothing by more, and would keep the engine from saying a word for long."""
TELL_S = 0.25
"""Seconds between two reports of the tokens that were made."""


@dataclass(eq=False)
class _Wave:
    """Answers in the order of the rows of their batch."""

    batch: TokenBatch
    answers: list[Answer]


class Decoder:
    """Decodes with `model` in a thread of its own; `version` is that of the weights in it.

    Raises `ConfigError` for a model that cannot decode two batches in turns.
    `on_fault(error)` is called from the thread should it ever end by an error.
    """

    def __init__(
        self,
        model: Any,
        version: PolicyVersion,
        *,
        max_inflight: int,
        on_fault: Callable[[BackendError], None],
    ) -> None:
        self.version = version
        self._model = model
        self._max_inflight = max_inflight
        self._on_fault = on_fault
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: list[Answer] = []
        self._waves: list[_Wave] = []
        self._told_s = 0.0
        is_cpu = torch.device(model.device).type == "cpu"
        self._max_prefill_tokens = MAX_PREFILL_TOKENS_CPU if is_cpu else MAX_PREFILL_TOKENS
        probe = TokenBatch(model, [[0]])
        probe.forward()
        self._takes_padding, self._is_standard = probe.takes_padding, probe.is_standard
        if not keeps_batches_apart(model):
            raise ConfigError(
                f"model '{type(model).__name__}' is refused: it keeps its state in itself and can decode one batch"
                " at a time; the transformers engine needs a model whose state is in a cache"
            )
        self._thread = threading.Thread(target=self._run, name="decoder", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Let the thread run `function`, which must not raise, before the next token."""
        self._calls.put(function)

    def close(self) -> None:
        """End the thread after the token that it is at, and wait for that. Answers in flight fail."""
        self._calls.put(None)
        self._thread.join()

    # What follows runs in the thread, the next four from functions given to `call`.

    def submit(self, answer: Answer) -> None:
        """Begin an answer as soon as there is room."""
        self._waiting.append(answer)

    def abort(self, request_ids: Collection[str]) -> None:
        """End these answers with the tokens that they have."""
        for answer in self._answers():
            if answer.request.request_id in request_ids:
                answer.end(FinishReason.ABORT, time.monotonic())
        self._clear()

    def restart(self, version: PolicyVersion) -> None:
        """After a change of the weights: go on with all answers from the tokens that they have."""
        self.version = version
        self._waiting, self._waves = self._answers(), []

    def fail_all(self, error: BackendError) -> None:
        """Give up all answers."""
        for answer in self._answers():
            answer.fail(type(error)(str(error)))
        self._waiting, self._waves = [], []

    def _answers(self) -> list[Answer]:
        running = [answer for wave in self._waves for answer in wave.answers if not answer.is_over]
        return running + [answer for answer in self._waiting if not answer.is_over]

    def _run(self) -> None:
        error: BackendError = BackendUnavailable("the decoder is closed")
        try:
            while self._obey():
                self._begin()
                self._clear()
                for wave in list(self._waves):
                    self._guard(wave.answers, partial(self._step, wave))
                self._clear()
                self._tell()
        except BaseException as fault:
            error = WorkerDied(f"the decoder has ended by {one_line(fault)}; restart the worker")
            raise
        finally:
            self.fail_all(error)
            self._on_fault(error)

    def _obey(self) -> bool:
        """Run the calls that have come; without work, wait for one. False: the end."""
        while True:
            try:
                if self._waves or len(self._waiting) >= self._max_inflight:
                    call = self._calls.get_nowait()
                else:
                    call = self._calls.get(timeout=GATHER_S if self._waiting else None)
            except queue.Empty:
                return True
            if call is None:
                return False
            call()

    def _begin(self) -> None:
        room = self._max_inflight - sum(len(wave.answers) for wave in self._waves)
        new, self._waiting = self._waiting[:room], self._waiting[room:]
        for prompts in self._prefills(new):
            answers = [answer for group in prompts for answer in group]
            self._guard(answers, partial(self._prefill, prompts))

    def _prefills(self, answers: list[Answer]) -> list[list[list[Answer]]]:
        """Forwards to be made, each a list of distinct prompts, each a list of the answers that go on from it."""
        by_prompt: dict[object, list[Answer]] = {}
        for number, answer in enumerate(answers):
            by_prompt.setdefault(answer.key if self._is_standard else number, []).append(answer)
        forwards: list[list[list[Answer]]] = []
        tokens = 0
        for group in sorted(by_prompt.values(), key=lambda group: len(group[0].sequence)):
            length, alone = len(group[0].sequence), bool(group[0].request.prompt.model_inputs)
            last = forwards[-1] if forwards and not alone else None
            if last is not None and not self._may_join(last, tokens, length):
                last = None
            if last is None:
                forwards.append([group])
                tokens = length
            else:
                last.append(group)
                tokens += length
        return forwards

    def _may_join(self, prompts: list[list[Answer]], tokens: int, length: int) -> bool:
        """Whether a prompt of that length can go with these, shorter ones of so many tokens."""
        if prompts[0][0].request.prompt.model_inputs or not self._is_standard:
            return False
        if not self._takes_padding and len(prompts[0][0].sequence) != length:
            return False
        cells = length * (len(prompts) + 1)
        return cells <= self._max_prefill_tokens and cells <= MAX_PADDING * (tokens + length)

    def _prefill(self, prompts: list[list[Answer]]) -> None:
        """First forward of these answers and their first token; then into a running batch, or a new one."""
        now = time.monotonic()
        answers = [answer for group in prompts for answer in group]
        for answer in answers:
            answer.start_s = answer.start_s or now
        batch, logits = self._first_forward([group[0] for group in prompts])
        if len(answers) > len(prompts):
            rows = [row for row, group in enumerate(prompts) for _ in group]
            batch.select(rows)
            logits = logits[rows]
        wave = _Wave(batch, answers)
        self._draw(wave, logits)
        for other in self._waves if self._is_standard else ():
            self._guard([*other.answers, *wave.answers], partial(_join, other, wave))
            if all(answer.is_over for answer in wave.answers):
                return
        self._waves.append(wave)

    def _first_forward(self, answers: list[Answer]) -> tuple[TokenBatch, torch.Tensor]:
        """A batch of answers that are at different places, and the logits of their next tokens."""
        inputs = self._inputs(answers[0])
        if not inputs or not answers[0].tokens:
            batch = TokenBatch(self._model, [answer.sequence for answer in answers], inputs)
            return batch, batch.forward()
        # With images the tokens of an answer are read after those of the prompt, as when they were made: one that
        # stands for an image there is none for here.
        batch = TokenBatch(self._model, [answers[0].prompt], inputs)
        batch.forward()
        batch.append(torch.tensor([answers[0].tokens]))
        return batch, batch.forward()

    def _inputs(self, answer: Answer) -> dict[str, torch.Tensor]:
        """Images and the like of its prompt, on the model's device and of its float type."""
        inputs = {}
        for name, array in answer.request.prompt.model_inputs.items():
            tensor = torch.tensor(array, device=self._model.device)
            if tensor.is_floating_point():
                tensor = tensor.to(self._model.dtype)
            inputs[name] = tensor[None] if name in PER_TOKEN and tensor.dim() == 1 else tensor
        return inputs

    def _step(self, wave: _Wave) -> None:
        self._draw(wave, wave.batch.forward())

    def _draw(self, wave: _Wave, logits: torch.Tensor) -> None:
        """The next token of every row."""
        filters = [answer.filters for answer in wave.answers]
        uniforms = [answer.chance.random() for answer in wave.answers]
        tokens, logprobs = draw_rows(logits, wave.batch.ids, filters, uniforms)
        wave.batch.append(tokens[:, None])
        drawn, now = zip(tokens.tolist(), logprobs.tolist(), strict=True), time.monotonic()
        for answer, (token, logprob) in zip(wave.answers, drawn, strict=True):
            answer.add(token, logprob, self.version, now)

    def _clear(self) -> None:
        """Take answers that are over out of their batches, and such batches away."""
        for wave in self._waves:
            keep = [row for row, answer in enumerate(wave.answers) if not answer.is_over]
            if 0 < len(keep) < len(wave.answers):
                self._guard(wave.answers, partial(wave.batch.select, keep))
            wave.answers = [wave.answers[row] for row in keep if not wave.answers[row].is_over]
        self._waves = [wave for wave in self._waves if wave.answers]
        self._waiting = [answer for answer in self._waiting if not answer.is_over]

    def _guard(self, answers: list[Answer], work: Callable[[], None]) -> None:
        """Do the work of a batch; a fault of the model ends its answers and no others, if it can still read a token."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a model raises what it likes
            for answer in answers:
                if not answer.is_over:
                    answer.fail(BackendUnavailable(f"the model failed with {one_line(error)}"))
            TokenBatch(self._model, [[0]]).forward()

    def _tell(self) -> None:
        """Show what every answer has got, from time to time."""
        if (now := time.monotonic()) - self._told_s >= TELL_S:
            self._told_s = now
            for answer in self._answers():
                answer.tell()


def _join(wave: _Wave, added: _Wave) -> None:
    """Put the answers of one into the batch of the other, where their batches fit."""
    if wave.batch.take_over(added.batch):
        wave.answers, added.answers = [*wave.answers, *added.answers], []
