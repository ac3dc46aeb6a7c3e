"""What loads a model's template without its weights, and encodes messages with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from swift import get_processor, get_template
from swift.infer_engine import InferRequest

from swift_rlx.errors import ConfigError
from swift_rlx.integration.model_path import refuse_missing_folder
from swift_rlx.registry import one_line


def template_of(model: str, template: str | None = None, **hub: Any) -> Any:
    """ms-swift's template with the tokenizer of `model`, an id or a directory; `template`: the name of another one.

    `hub`: what ms-swift's `get_processor` takes beside it, such as `use_hf`. Raises ConfigError where that fails.
    """
    refuse_missing_folder("--model", model)
    try:
        return get_template(get_processor(model, **hub), template_type=template)
    except Exception as error:  # hubs, files and templates raise what they like
        raise ConfigError(f"--model {model} is refused: {one_line(error)}") from error


def encoded(template: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids of the messages, by the mode of the template. Raises ConfigError for what cannot be encoded."""
    try:
        found = template.encode(InferRequest(messages=[dict(one) for one in messages]))
    except Exception as error:  # templates raise what they like
        raise ConfigError(
            f"the messages {str(list(messages))[:120]} cannot be encoded: {one_line(error)}"
        ) from error
    return [int(one) for one in found["input_ids"]]
