"""Reading a model piece by piece: PEFT's own merge, on copies."""

import peft
import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from transformers import LlamaConfig, LlamaForCausalLM

from swift_rlx.errors import ConfigError
from swift_rlx.trainers.weight_pieces import pieces_of, published_tensors

QV = ["q_proj", "v_proj"]
ADAPTERS = {
    "lora": peft.LoraConfig(target_modules=[*QV, "down_proj"], r=3, lora_alpha=5),
    "rank-stabilized": peft.LoraConfig(target_modules=QV, r=3, use_rslora=True),
    "dora": peft.LoraConfig(target_modules=QV, r=3, use_dora=True),
    "bias": peft.LoraConfig(target_modules=QV, r=3, bias="all"),
    "lora-bias": peft.LoraConfig(target_modules=["up_proj"], r=3, lora_bias=True),
    "pissa": peft.LoraConfig(target_modules=QV, r=3, init_lora_weights="pissa"),
    "embedding": peft.LoraConfig(target_modules=["embed_tokens"], r=3),
    "head": peft.LoraConfig(target_modules=["lm_head"], r=3, modules_to_save=["norm"]),
    "modules-to-save": peft.LoraConfig(target_modules=QV, r=3, modules_to_save=["embed_tokens", "up_proj"]),
    "tokens": peft.LoraConfig(target_modules=QV, r=3, trainable_token_indices=[1, 5]),
    "lokr": peft.LoKrConfig(target_modules=QV, r=3),
    "loha": peft.LoHaConfig(target_modules=QV, r=3),
    "ia3": peft.IA3Config(target_modules=[*QV, "down_proj"], feedforward_modules=["down_proj"]),
    "vera": peft.VeraConfig(target_modules=["q_proj"], r=3),
    "boft": peft.BOFTConfig(target_modules=QV, boft_block_size=4),
    "oft": peft.OFTConfig(target_modules=QV, oft_block_size=4),
    "adalora": peft.AdaLoraConfig(target_modules=QV, init_r=3, target_r=2, total_step=10),
}


def tiny(**changes: object) -> LlamaForCausalLM:
    config = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
        "mlp_bias": True,
        **changes,
    }
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**config)).eval()


def adapted(config: peft.PeftConfig, **changes: object) -> peft.PeftModel:
    """A tiny model with an adapter whose trained parameters are random."""
    model = peft.get_peft_model(tiny(**changes), config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn_like(parameter)
    return model


def read_all(model: torch.nn.Module, adapter: str | None) -> dict[str, torch.Tensor]:
    names = published_tensors(model, adapter)
    values = {id(tensor): tensor.detach() for tensor in [*model.parameters(), *model.buffers()]}
    found = {}
    for piece in pieces_of(model, adapter):
        found |= piece.read(values, adapter)
    return {name: found[name] for name in names}


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(24)[None]).logits


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ADAPTERS)
def test_merged_weights_in_the_base_model_give_the_adapted_models_logits(name: str) -> None:
    model = adapted(ADAPTERS[name], mlp_bias=True)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(3):
        read = read_all(model.get_base_model(), "default")

    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    plain = tiny()
    assert set(read) == {key for key, _ in plain.named_parameters()}
    assert (logits(plain) - logits(model)).abs().max() > 0.01
    plain.load_state_dict(read)
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=2e-5)


def test_of_two_adapters_only_the_chosen_one_is_merged() -> None:
    model = adapted(ADAPTERS["lora"])
    model.add_adapter(
        "reference", peft.LoraConfig(target_modules=["k_proj", "q_proj"], init_lora_weights=False)
    )
    plain = tiny()
    plain.load_state_dict(read_all(model.get_base_model(), "default"))
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=2e-5)


def test_a_tied_parameter_is_read_once_under_its_first_name() -> None:
    model = tiny(tie_word_embeddings=True)
    read = read_all(model, None)
    assert list(read) == [key for key, _ in model.named_parameters()]
    assert "lm_head.weight" not in read
    merged = read_all(adapted(ADAPTERS["lora"], tie_word_embeddings=True).get_base_model(), "default")
    assert list(merged) == list(read)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["embedding", "head", "modules-to-save"])
def test_an_adapter_that_parts_tied_parameters_is_refused(name: str) -> None:
    model = adapted(ADAPTERS[name], tie_word_embeddings=True)
    with pytest.raises(ConfigError, match=r"embed_tokens.weight and lm_head.weight are one parameter"):
        published_tensors(model.get_base_model(), "default")


def test_buffers_that_a_checkpoint_holds_are_read_too() -> None:
    model = tiny()
    model.model.norm.register_buffer("correction", torch.ones(2))
    model.model.norm.register_buffer("scratch", torch.ones(2), persistent=False)
    assert set(read_all(model, None)) == set(model.state_dict())
    assert "model.norm.correction" in read_all(model, None)


def test_copies_take_no_hooks_along() -> None:
    model = adapted(ADAPTERS["lora"])
    whole_model = []
    for module in model.modules():
        module.register_forward_hook(lambda *_: whole_model.append(model))
    expected = read_all(adapted(ADAPTERS["lora"]).get_base_model(), "default")
    for name, tensor in read_all(model.get_base_model(), "default").items():
        assert torch.equal(tensor, expected[name])
    assert not whole_model


def test_names_skip_what_activation_checkpointing_puts_between() -> None:
    model = tiny()
    expected = read_all(model, None)
    model.model.layers[0] = checkpoint_wrapper(model.model.layers[0])
    assert any("_checkpoint_wrapped_module" in name for name, _ in model.named_modules())
    assert list(read_all(model, None)) == list(expected)
