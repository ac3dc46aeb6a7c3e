"""Images of a row in every form that ms-swift takes, as inputs of the workers' model."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_vision import MARK, OPTIONS, save_pictures, save_tiny_vision

from swift_rlx.trainers.prompt_encoding import PromptEncoder, barred_tokens


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    from swift import get_processor, get_template
    from swift.rl_core.data import GRPOSample

    folder = tmp_path_factory.mktemp("tiny") / "llava"
    save_tiny_vision(folder)
    processor = get_processor(str(folder), model_type=OPTIONS["model_type"])
    return PromptEncoder(get_template(processor, template_type=OPTIONS["template"]), GRPOSample, None)


FORMS: dict[str, Callable[[Path], Any]] = {
    "path": str,
    "path in a dict": lambda path: {"bytes": None, "path": str(path)},
    "bytes in a dict": lambda path: {"bytes": path.read_bytes(), "path": None},
    "base64": lambda path: base64.b64encode(path.read_bytes()).decode(),
    "PIL": Image.open,
}


def row(*images: Any) -> dict[str, Any]:
    content = MARK * len(images) + "say"
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "said"}]
    return {"messages": messages, "images": list(images)}


def test_every_form_of_an_image_is_the_same_picture(encoder: PromptEncoder, tmp_path: Path) -> None:
    one, other, *_ = save_pictures(tmp_path, 3)
    expected = encoder.prompt(row(str(one)), 0, 0)
    mark = encoder.template.tokenizer.convert_tokens_to_ids(MARK)
    assert expected.token_ids.tolist().count(mark) == 4
    assert expected.model_inputs["pixel_values"].shape == (1, 3, 8, 8)
    for name, form in FORMS.items():
        found = encoder.prompt(row(form(one)), 0, 0)
        assert found.token_ids.tolist() == expected.token_ids.tolist(), name
        assert np.array_equal(found.model_inputs["pixel_values"], expected.model_inputs["pixel_values"]), name
    both = encoder.prompt(row(str(other), str(one)), 0, 0)
    assert np.array_equal(both.model_inputs["pixel_values"][1:], expected.model_inputs["pixel_values"])
    assert not np.array_equal(both.model_inputs["pixel_values"][:1], expected.model_inputs["pixel_values"])
    assert encoder.prompt(row(), 0, 0).model_inputs == {}
    assert barred_tokens(encoder.template) == (mark,)
