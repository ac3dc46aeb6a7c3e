"""A prompt that is computed once gives the log-probs, entropies and gradients of one that every row computes."""

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
import transformers
from swift.rlhf_trainers import GRPOTrainer
from tiny_models import BASE, tiny_of
from torch import nn

from swift_rlx.errors import ConfigError
from swift_rlx.trainers.prompt_layout import lay_out
from swift_rlx.trainers.shared_attention import NAME, use_shared_attention
from swift_rlx.trainers.shared_prompt import SharedPromptMixin, probe_batch, shared_logprobs

PROMPTS = ((5, 6, 7, 8, 9, 10, 11), (5, 6, 7), (40, 41, 42, 43))
ROWS = ((0, 3), (1, 5), (0, 1), (2, 4), (1, 2), (0, 6), (2, 4))
"""Prompt and number of sampled tokens of each row; the rows of a prompt are not side by side."""


def model_of(kind: str) -> nn.Module:
    """In float64 throughout: the norms of transformers would round to float32."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**BASE | {"num_hidden_layers": 3})
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    model = getattr(transformers, name)(config)
    for name, norm in [*model.named_modules()]:
        if type(norm).__name__.endswith("RMSNorm"):
            model.set_submodule(name, nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon))
    return model.double().eval()


def with_adapter(model: nn.Module) -> nn.Module:
    config = peft.LoraConfig(target_modules="all-linear", r=3, init_lora_weights=False)
    return peft.get_peft_model(model, config).double()


def batch(rows: tuple[tuple[int, int], ...] = ROWS, *, left: bool = False) -> tuple[torch.Tensor, ...]:
    """Ids and attention mask [B, L], completion mask [B, T], as ms-swift collates rows of these lengths."""
    generator = torch.Generator().manual_seed(1)
    texts = [
        (PROMPTS[number], torch.randint(3, 128, (length,), generator=generator).tolist())
        for number, length in rows
    ]
    width = max(len(prompt) + len(answer) for prompt, answer in texts)
    ids, attended, trains = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    for row, (prompt, answer) in enumerate(texts):
        begin = width - len(prompt) - len(answer) if left else 0
        end = begin + len(prompt) + len(answer)
        ids[row, begin:end] = torch.tensor([*prompt, *answer])
        attended[row, begin:end] = 1
        trains[row, begin + len(prompt) : end] = 1
    first = min(int(row.nonzero()[0]) if row.any() else 0 for row in trains)
    return ids, attended, trains[:, first:]


def one_by_one(
    model: nn.Module, given: tuple[torch.Tensor, ...], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies [B, T] of the completions, each row alone and without padding."""
    ids, attended, trains = given
    logprobs, entropies = (torch.zeros(trains.shape, dtype=torch.float64) for _ in range(2))
    for row in range(len(ids)):
        answer = trains[row].nonzero()[:, 0]
        tokens = ids[row][attended[row].bool()]
        all_BTV = torch.log_softmax(
            model(input_ids=tokens[None], use_cache=False).logits[0] / temperature, -1
        )
        if not len(answer):
            continue
        behind = all_BTV[-len(answer) - 1 : -1]
        logprobs[row, answer] = behind.gather(1, tokens[-len(answer) :, None])[:, 0]
        entropies[row, answer] = -(behind.exp() * behind).sum(-1).detach()
    return logprobs, entropies


def gradients(model: nn.Module, logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of a loss in which every token has another weight."""
    model.zero_grad()
    weights = torch.linspace(-1, 2, logprobs.numel(), dtype=torch.float64).view(logprobs.shape)
    (logprobs * weights).sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def difference(model: nn.Module, given: tuple[torch.Tensor, ...], change: Callable[[Any], Any]) -> float:
    """The largest one, of log-probs, entropies and gradients; `change` may break the layout."""
    shared_model = copy.deepcopy(model)
    use_shared_attention(shared_model)
    layout = change(lay_out(*given))
    ours, our_entropies = shared_logprobs(shared_model, layout, 0.7, with_entropies=True)
    plain, entropies = one_by_one(model, given, 0.7)
    assert ours.shape == plain.shape
    mine, theirs = gradients(shared_model, ours), gradients(model, plain)
    assert mine.keys() == theirs.keys()
    assert sum(each.abs().sum() for each in theirs.values()) > 1
    pairs = [(ours, plain), (our_entropies, entropies), *((mine[name], theirs[name]) for name in theirs)]
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "GPT2"])
@pytest.mark.parametrize("adapter", [False, True])
def test_a_shared_prompt_changes_no_logprob_entropy_or_gradient(kind: str, adapter: bool) -> None:
    model = with_adapter(model_of(kind)) if adapter else model_of(kind)
    assert difference(model, batch(), lambda layout: layout) < 1e-9


@pytest.mark.parametrize(
    ("rows", "left"),
    [(ROWS, True), (((0, 3),), False), (((0, 3), (1, 0), (0, 2)), False), (((1, 2), (2, 2)), False)],
    ids=["padded on the left", "one row", "an empty completion", "no prompt twice"],
)
def test_rows_of_any_lengths_give_the_same(rows: tuple[tuple[int, int], ...], left: bool) -> None:
    assert difference(model_of("Llama"), batch(rows, left=left), lambda layout: layout) < 1e-9


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_that_are_computed_again_give_the_same(reentrant: bool) -> None:
    model = with_adapter(model_of("Llama"))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model.train()
    assert difference(model, batch(), lambda layout: layout) < 1e-9


def first_positions(layout: Any) -> Any:
    return replace(layout, position_ids=torch.arange(layout.num_tokens))


def open_prompt_padding(layout: Any) -> Any:
    mask = layout.mask.clone()
    mask[..., : mask.shape[3] - mask.shape[2]] = True
    return replace(layout, mask=mask)


def other_prompt(layout: Any) -> Any:
    return replace(layout, prompt_of_B=layout.prompt_of_B.roll(1))


def next_source(layout: Any) -> Any:
    return replace(layout, sources=(layout.sources - 1).clamp(min=0))


@pytest.mark.parametrize("break_it", [first_positions, open_prompt_padding, other_prompt, next_source])
def test_the_comparison_sees_a_broken_layout(break_it: Callable[[Any], Any]) -> None:
    assert difference(model_of("Llama"), batch(), break_it) > 1e-3


def test_each_token_of_a_prompt_is_computed_once() -> None:
    layout = lay_out(*batch())
    assert layout.num_prompts == len(PROMPTS)
    assert layout.num_tokens == sum(map(len, PROMPTS)) + sum(length for _, length in ROWS)
    assert len(layout.targets) == len(layout.sources) == sum(layout.lengths)


def test_tokens_of_a_conversation_that_do_not_train_are_read_and_scored() -> None:
    ids, attended, trains = batch()
    inside = trains.clone()
    inside[5, inside[5].nonzero()[2:4, 0]] = 0
    model = model_of("Llama")
    use_shared_attention(model)
    with torch.no_grad():
        whole, _ = shared_logprobs(model, lay_out(ids, attended, trains))
        cut, _ = shared_logprobs(model, lay_out(ids, attended, inside))
    assert torch.equal(whole, cut)


def test_a_row_without_a_prompt_is_no_row() -> None:
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="row 0 has no prompt"):
        lay_out(ids, ids, ids)


def test_the_plain_pass_of_a_model_is_what_it_was() -> None:
    ids, attended, _ = batch(left=True)
    model = model_of("Llama").float()
    shared = copy.deepcopy(model)
    use_shared_attention(shared)
    use_shared_attention(shared)  # the reference may be the model itself
    assert shared.config._attn_implementation == NAME
    assert NAME not in shared.config.to_json_string()  # a checkpoint is what it was
    given = {"input_ids": ids, "attention_mask": attended}
    assert torch.equal(model(**given).logits, shared(**given).logits)
    answers = [
        each.generate(**given, max_new_tokens=4, do_sample=False, eos_token_id=None)
        for each in (model, shared)
    ]
    assert torch.equal(*answers)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Mistral", "it has layers of sliding_attention"),
        ("Gemma2", "it has layers of sliding_attention"),
        ("Bloom", "its attention cannot be replaced"),
        ("Mamba", "it carries a state from token to token"),
        ("FalconH1", "it carries a state from token to token"),
        ("Qwen3Next", "it carries a state from token to token"),
        ("Lfm2", "it has layers of conv"),
    ],
)
def test_a_model_that_mixes_tokens_in_another_way_is_refused(kind: str, reason: str) -> None:
    with pytest.raises(
        ConfigError, match=f"--share_prompt true cannot be used with {kind}ForCausalLM: {reason}"
    ):
        use_shared_attention(tiny_of(kind))


def test_another_attention_is_refused() -> None:
    model = model_of("Llama")
    model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="its attention is eager, and only sdpa can share a prompt; drop"):
        use_shared_attention(model)


def test_a_model_on_several_devices_or_with_the_logits_of_all_tokens_is_refused() -> None:
    spread, whole = model_of("Llama"), model_of("Llama")
    spread.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": 1}
    with pytest.raises(ConfigError, match="it is spread over several devices"):
        use_shared_attention(spread)
    whole.forward = lambda input_ids, **kwargs: None
    with pytest.raises(ConfigError, match="it computes the logits of every token"):
        use_shared_attention(whole)


class Stub(SharedPromptMixin, GRPOTrainer):
    """As much of a trainer as looks at a model when the run starts."""

    def __init__(self, model: nn.Module, kind: str = "NO", is_multimodal: bool = False) -> None:
        self.args, self.temperature = SimpleNamespace(share_prompt=True), 0.9
        self.model, self.ref_model, self.is_multimodal = model, None, is_multimodal
        self.accelerator = SimpleNamespace(distributed_type=SimpleNamespace(value=kind), device="cpu")
        self.template = SimpleNamespace(padding_free=False, sequence_parallel_size=1)
        self.model_kwarg_keys = ("use_cache", "logits_to_keep")
        self._share_prompts()


class Convolution(nn.Module):
    """Mixes a token with the one before it, as no configuration tells."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inside(hidden + hidden.roll(1, 1))


def test_a_model_is_compared_with_its_plain_pass_before_it_trains() -> None:
    Stub(model_of("Qwen3").float().train())
    mixing = model_of("Llama").float()
    mixing.model.layers[0].mlp = Convolution(mixing.model.layers[0].mlp)
    with pytest.raises(ConfigError, match=r"changes a log-prob by [\d.]+ nats, and rounding explains 0.001"):
        Stub(mixing)


def test_a_model_whose_layers_do_not_all_attend_is_refused() -> None:
    model = model_of("Llama").float()
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(ConfigError, match="2 of its 3 layers attend"):
        Stub(model)


def test_a_wrapper_that_was_never_run_and_images_are_refused() -> None:
    model = model_of("Llama")
    with pytest.raises(ConfigError, match="cannot be used with FSDP, with which it was never run"):
        Stub(model, "FSDP")
    with pytest.raises(ConfigError, match="cannot be used with a multimodal model"):
        Stub(model, is_multimodal=True)
    stub = Stub(model)
    inputs, rows = probe_batch(128, "cpu")
    with pytest.raises(ConfigError, match="cannot be used with a model that takes pixel_values"):
        stub._get_per_token_logps_and_entropies_single(model, inputs | {"pixel_values": None}, rows)


def test_attention_with_more_than_keys_and_values_is_refused() -> None:
    model = model_of("Llama")
    use_shared_attention(model)
    layer = model.model.layers[2].self_attn
    plain = layer.forward
    layer.forward = lambda *args, **kwargs: plain(*args, **kwargs, softcap=30.0)
    with pytest.raises(ConfigError, match="whose attention has softcap"):
        shared_logprobs(model, lay_out(*batch()))
