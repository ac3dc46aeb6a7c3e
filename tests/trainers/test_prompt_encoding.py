"""The encoder beside the training, without a model."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from swift_rlx.trainers.prompt_encoding import PromptEncoder

LIMIT_S = 60.0


class SlowTemplate:
    """Its `encode` lasts until `go_on` is set."""

    processor = None
    model_meta = SimpleNamespace(is_multimodal=False)

    def __init__(self) -> None:
        self.encodes, self.decodes, self.go_on = (threading.Event() for _ in range(3))

    def set_mode(self, mode: str) -> None:
        pass

    def encode(self, request: Any) -> dict[str, Any]:
        self.encodes.set()
        assert self.go_on.wait(LIMIT_S)
        return {"input_ids": [1, 2]}

    def decode_generate_ids(self, ids: list[int]) -> str:
        self.decodes.set()
        return "an answer"


def test_two_threads_use_its_tokenizer_one_after_the_other() -> None:
    template, texts = SlowTemplate(), []
    sample = SimpleNamespace(
        apply_rollout_output=lambda rollout_output: texts.append(
            rollout_output.response.choices[0].message.content
        )
    )
    encoder = PromptEncoder(template, SimpleNamespace, None)
    with ThreadPoolExecutor(2) as threads:
        try:
            prompt = threads.submit(encoder.encode, {}, 0, 0, {})
            assert template.encodes.wait(LIMIT_S)
            answer = threads.submit(encoder.answer, sample, [3], [-1.0], "stop")
            assert not template.decodes.wait(0.2), "the rewards decode while the pipeline encodes"
        finally:
            template.go_on.set()
        answer.result(LIMIT_S)
    assert prompt.result().token_ids.tolist() == [1, 2]
    assert texts == ["an answer"]
