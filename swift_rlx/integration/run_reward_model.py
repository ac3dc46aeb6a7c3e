"""Reward models of a run (`--reward_model`) as rewards like others: asked here, or in a process that has its own copy.

In either place the plugin of ms-swift (`--reward_model_plugin`) asks the model. A process loads it as ms-swift loaded
ours, and only has it where the weights are the same: a model that was changed since, as by an adapter, is asked here.
"""

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import torch
from accelerate import Accelerator
from swift import get_model_processor, get_template
from swift.rewards import rm_plugins
from swift.utils import HfConfigFactory, import_external_file

from swift_rlx.errors import PluginError
from swift_rlx.integration.reward_names import is_plain
from swift_rlx.integration.worker_model import device_map
from swift_rlx.registry import Provider
from swift_rlx.rewards import Reward, describe_reward
from swift_rlx.rewards.origin import Origin
from swift_rlx.rewards.versions import digest_of_model

_LOADER = "swift_rlx.integration.run_reward_model:load"
_FOR_ALL_MODELS = ("attn_impl", "experts_impl", "rope_scaling", "new_special_tokens")
_EDGE = 1024
"""Elements at the begin and at the end of each tensor that tell weights apart."""


class AskedModel:
    """A plugin of ms-swift around a reward model; two threads ask it one after the other, as it has one tokenizer."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin
        self._lock = Lock()

    def __call__(self, inputs: list[dict[str, Any]], **columns: Any) -> Any:
        """As ms-swift asks: rows, and their columns once more."""
        with self._lock:
            return self._plugin(inputs=inputs, **columns)

    def score(self, completions: Sequence[Any], **columns: Any) -> Any:
        """As rewards of the list form are asked: one value for each completion."""
        per_row = {name: values for name, values in columns.items() if isinstance(values, list)}
        rows = [{name: values[at] for name, values in per_row.items()} for at in range(len(completions))]
        return self(rows, **columns)


def described_model(name: str, asked: AskedModel, model: Any, *, origin: Origin | None) -> Reward:
    """The reward `name` of the list form. `origin`: how a process gets a copy of the model; None: it is asked here."""
    provider = Provider(f"reward model {model.config._name_or_path}", version_of_model(model))
    return describe_reward(name, asked.score, provider=provider, origin=origin)


def version_of_model(model: Any) -> str:
    """The digest of its folder or, where it came from no folder, what it is called."""
    folder = str(model.config._name_or_path)
    return digest_of_model(folder) or f"model:{folder}"


def origin_of_model(
    name: str, model: Any, template: Any, plugin: str, trainer: Any, num_devices: int
) -> Origin:
    """How a process that sees `num_devices` accelerators gets a copy of a model that ms-swift loaded for `trainer`.

    `plugin`: its name in ms-swift's table. Digests the weights.
    """
    info, args = template.model_info, trainer.args
    given = {option: getattr(args, option) for option in _FOR_ALL_MODELS}
    options = {
        "name": name,
        "folder": info.model_dir,
        "plugin": plugin,
        "weights": digest_of_weights(model),
        "num_devices": num_devices,
        "precision": trainer.accelerator.mixed_precision,
        "files": [*args.external_plugins],
        "model": {
            "model_type": info.model_type,
            "torch_dtype": str(info.torch_dtype).removeprefix("torch."),
            "task_type": info.task_type,
            "num_labels": info.num_labels,
            **{option: value for option, value in given.items() if value},
        },
        "template": _template_options(template),
    }
    return Origin(_LOADER, options)


def load(
    name: str,
    folder: str,
    plugin: str,
    weights: str,
    num_devices: int,
    precision: str,
    files: Sequence[str],
    model: Mapping[str, Any],
    template: Mapping[str, Any],
) -> Reward:
    """The reward that `origin_of_model` describes, in a process of its own.

    Raises PluginError where the model has other weights than the trainer's, and where no plugin of that name is found.
    """
    for path in files:
        import_external_file(path)
    dtype = getattr(torch, model["torch_dtype"])
    loaded, processor = get_model_processor(
        folder, **{**model, "torch_dtype": dtype}, device_map=device_map(num_devices)
    )
    if digest_of_weights(loaded) != weights:
        raise PluginError(
            f"the model in {folder} has other weights than the trainer's, which was changed since"
        )
    if plugin not in rm_plugins:
        raise PluginError(f"ms-swift's table has no --reward_model_plugin {plugin!r} in another process")
    loaded.requires_grad_(False).eval()
    HfConfigFactory.set_config_attr(loaded.config, "use_cache", False)
    encoder = get_template(processor, **template)
    encoder.set_mode("train")
    encoder.max_length = None
    if encoder.use_model:
        encoder.model = loaded
    asked = AskedModel(rm_plugins[plugin](model=loaded, template=encoder))
    Accelerator(cpu=not num_devices, mixed_precision=precision).prepare_model(
        loaded, evaluation_mode=True, device_placement=False
    )
    return described_model(name, asked, loaded, origin=None)


def digest_of_weights(model: Any) -> str:
    """Of the names, shapes and types of all tensors, and of both ends of each; equal on every device."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().flatten()
        ends = torch.cat([flat[:_EDGE], flat[-_EDGE:]]).cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(ends.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _template_options(template: Any) -> dict[str, Any]:
    """What ms-swift's `get_template` has to be given for such a template."""
    values = {
        "template_type": template.template_meta.template_type,
        "default_system": template.template_meta.default_system,
        "agent_template": template._agent_template,
        "loss_scale": template._loss_scale,
    }
    others = inspect.signature(get_template).parameters.keys() - {"processor", "max_length", *values}
    values |= {name: getattr(template, name, None) for name in others}
    return {name: value for name, value in values.items() if value is not None and is_plain(value)}
