"""From a row of the data set to a prompt for the workers, and from sampled ids back to text.

Used beside the training, by the thread of the pipeline and that of the rewards: it has a template and a tokenizer of
its own, for one of them at a time, because fast tokenizers must not be used by two threads at once.
"""

import threading
from copy import copy, deepcopy
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import torch
from PIL import Image
from swift.infer_engine.protocol import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
    RolloutOutput,
    UsageInfo,
)
from swift.utils import remove_response

from swift_rlx.errors import ConfigError
from swift_rlx.integration.answer_ends import answer_ends
from swift_rlx.registry import one_line
from swift_rlx.types import Prompt, SamplingParams

NOT_MODEL_INPUTS = {
    "input_ids",
    "labels",
    "loss_scale",
    "length",
    "attention_mask",
    "position_ids",
    "template_inputs",
}
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
MAX_SHOWN = 300
"""Characters of a row in an error message; the data may be shuffled, so that its number alone says little."""


class PromptEncoder:
    """`template`: ms-swift's, of the trainer; `sample_cls`: what it makes of a row."""

    def __init__(self, template: Any, sample_cls: type, request_config: Any) -> None:
        self.template = own_template(template)
        self.request_config = request_config
        self._sample_cls = sample_cls
        self._tokenizing = threading.Lock()

    def sample(self, row: dict[str, Any]) -> Any:
        """The row as ms-swift's sample: with the system prompt, without the answer of the data set."""
        sample = self._sample_cls.from_row(row)
        system = self.template.template_meta.default_system
        if system and sample.messages[0]["role"] != "system":
            sample.messages.insert(0, {"role": "system", "content": system})
        if isinstance(sample.images, list):
            sample.images = [_as_file(image) for image in sample.images]
        remove_response(sample.messages)
        return sample

    def prompt(self, row: dict[str, Any], index: int, epoch: int) -> Prompt:
        """The prompt of a row, encoded as ms-swift encodes it for inference."""
        return self.encode(self.sample(row).to_infer_request(), index, epoch, row)

    def request(self, prompt: Prompt, request_id: str) -> Any:
        """ms-swift's inference request of a prompt, as its multi-turn schedulers take it."""
        sample = self.sample(dict(prompt.columns))
        sample.request_id = request_id
        return sample.to_infer_request(include_extra=True)

    def encode(self, request: Any, index: int, epoch: int, row: dict[str, Any]) -> Prompt:
        """An inference request of ms-swift (a row, or a turn of a conversation) as a prompt.

        Raises ConfigError for what cannot be encoded, such as an image that is not there.
        """
        try:
            with self._tokenizing:
                encoded = self.template.encode(deepcopy(request))
        except Exception as error:  # templates and images raise what they like
            raise ConfigError(
                f"row {index} of the training data, {str(row)[:MAX_SHOWN]}, is refused: it cannot be encoded:"
                f" {one_line(error)}; mend or drop it"
            ) from error
        return Prompt(
            index=index,
            epoch=epoch,
            token_ids=np.asarray(encoded["input_ids"], np.int32),
            columns=row,
            model_inputs=self._model_inputs(encoded),
        )

    def _model_inputs(self, encoded: dict[str, Any]) -> dict[str, Any]:
        if not self.template.model_meta.is_multimodal:
            return {}
        encoded.pop("template_inputs", None)
        batch = self._without_model(self.template.data_collator([encoded]))
        return {
            name: _as_array(value)
            for name, value in batch.items()
            if name not in NOT_MODEL_INPUTS and self._is_model_input(name, value)
        }

    def _without_model(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What ms-swift gives to a model that generates.

        Raises ConfigError for a template that makes embeddings of the images with the model's weights first: those
        of the trainer are not for this thread, and would be of the wrong version.
        """
        try:
            ready = self.template._post_encode(_NoModel(), dict(batch))
        except _ModelUsed:
            ready = {"inputs_embeds": None}
        if "inputs_embeds" in ready:
            raise ConfigError(
                f"--template {self.template.template_meta.template_type} cannot be used with the asynchronous pipeline:"
                " it embeds images outside of the model; use --async_rollout false"
            )
        return ready

    def _is_model_input(self, name: str, value: Any) -> bool:
        if isinstance(value, list) and any(isinstance(one, torch.Tensor) for one in value):
            raise ConfigError(
                f"--template {self.template.template_meta.template_type} cannot be used with the asynchronous pipeline:"
                f" its '{name}' is no single tensor; use --async_rollout false"
            )
        return isinstance(value, torch.Tensor) or (
            isinstance(value, list) and bool(value) and all(isinstance(one, int | float) for one in value)
        )

    def answer(
        self, sample: Any, token_ids: list[int], logprobs: list[float], finish_reason: str, turns: str = ""
    ) -> Any:
        """Put an answer onto a sample, in place; `turns` is what a conversation left (`conversations.py`)."""
        if turns:
            output = conversation_output(turns, finish_reason)
        else:
            with self._tokenizing:
                text = self.template.decode_generate_ids(token_ids)
            output = _output(text, finish_reason, token_ids=token_ids)
            output.rollout_logprobs = [logprobs]
        sample.apply_rollout_output(rollout_output=output)
        return sample

    def sampling(self) -> SamplingParams:
        """ms-swift's `request_config` as ours; the template's stop words end an answer too.

        Raises ConfigError for an option that no worker has.
        """
        request_config = self.request_config
        if request_config.structured_outputs_regex:
            raise ConfigError(
                f"--structured_outputs_regex {request_config.structured_outputs_regex} cannot be used with the"
                " asynchronous pipeline; drop it, or use --async_rollout false"
            )
        ends = answer_ends(self.template, request_config.stop or ())
        return SamplingParams(
            max_tokens=request_config.max_tokens,
            temperature=request_config.temperature,
            top_p=1.0 if request_config.top_p is None else request_config.top_p,
            top_k=max(request_config.top_k or 0, 0),
            min_p=request_config.min_p or 0.0,
            repetition_penalty=request_config.repetition_penalty or 1.0,
            stop=ends.texts,
            stop_token_ids=ends.token_ids,
            barred_token_ids=barred_tokens(self.template),
        )


def barred_tokens(template: Any) -> tuple[int, ...]:
    """Ids that stand for an image and the like: an answer with one cannot be trained, as no image belongs to it."""
    if not template.model_meta.is_multimodal:
        return ()
    ids = {token for token in template.placeholder_tokens if isinstance(token, int)}
    return tuple(sorted(ids & set(range(len(template.tokenizer))) - {template.tokenizer.unk_token_id}))


def _output(text: Any, finish_reason: str, token_ids: list[int] | None = None, **fields: Any) -> Any:
    choice = ChatCompletionResponseChoice(
        index=0,
        message=ChatMessage(role="assistant", content=text),
        finish_reason=finish_reason,
        token_ids=token_ids,
    )
    response = ChatCompletionResponse(model="", choices=[choice], usage=UsageInfo(0, 0, 0))
    return RolloutOutput(response=response, **fields)


def conversation_output(turns: str, finish_reason: str) -> Any:
    """What ms-swift's multi-turn scheduler returned, out of `Completion.info["turns"]`."""
    left = msgspec.json.decode(turns)
    return _output(left["messages"][-1]["content"], finish_reason, **left)


def own_template(template: Any) -> Any:
    """A copy for inference with a processor of its own."""
    own = copy(template)
    own.processor = deepcopy(template.processor)
    own.padding_free = False
    own.sequence_parallel_size = 1
    own.remove_unused_columns = True
    own.max_length = None  # what does not fit was refused at the start
    own.set_mode("transformers")
    return own


class _ModelUsed(Exception):
    """A template has asked for the model."""


class _NoModel:
    """Stands for the model where there is none."""

    def __getattr__(self, name: str) -> Any:
        raise _ModelUsed(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _ModelUsed("forward")


def _as_file(image: Any) -> Any:
    """An opened image as the data of one, which is what ms-swift's requests can hold; other forms as they are."""
    if not isinstance(image, Image.Image):
        return image
    data = BytesIO()
    (image if image.mode in PNG_MODES else image.convert("RGB")).save(data, "PNG")
    return {"bytes": data.getvalue(), "path": None}


def _as_array(value: Any) -> Any:
    tensor = torch.as_tensor(value)
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
