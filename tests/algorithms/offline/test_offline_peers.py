"""Numbers of d3rlpy, choix, scikit-learn and rjieba on a small data set that both sides share.

They were recorded by tests/support/offline_peer_values.py; d3rlpy alone brings eleven packages with it.
"""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import tensor

from swift_rlx.algorithms.offline import (
    awac_weights,
    bradley_terry,
    chinese_entities,
    conservative_penalty,
    win_matrix,
)
from swift_rlx.algorithms.offline.comparisons import Comparisons

F64 = torch.float64
RECORDED = json.loads((Path(__file__).parent / "peer_values.json").read_text(encoding="utf-8"))
VALUES, ACTIONS = tensor(RECORDED["values"], dtype=F64), tensor(RECORDED["actions"])
ADVANTAGES = tensor(RECORDED["advantages"], dtype=F64)


@pytest.mark.parametrize("quantity", ["cql_term", "bcq_imitation"])
def test_the_penalty_is_the_conservative_term_and_the_imitation_loss_of_d3rlpy(quantity):
    ours = conservative_penalty(VALUES, ACTIONS).mean().item()
    assert ours == pytest.approx(RECORDED["d3rlpy"][quantity], abs=1e-12)


@pytest.mark.parametrize("temperature", ["1.0", "0.3"])
def test_awac_weights_over_their_sum_are_those_of_d3rlpy(temperature):
    """Theirs sum to the size of the batch."""
    ours = awac_weights(ADVANTAGES, float(temperature))
    theirs = tensor(RECORDED["d3rlpy"]["awac_weights"][temperature], dtype=F64)
    torch.testing.assert_close(ours / ours.sum() * len(ours), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("peer", "tolerance"), [("choix", 1e-6), ("sklearn", 1e-5)])
def test_bradley_terry_scores_are_those_of_choix_and_of_logistic_regression(peer, tolerance):
    wins = tensor(RECORDED["wins"])
    comparisons = Comparisons(wins, torch.ones(len(wins), dtype=F64))
    found = bradley_terry(win_matrix(comparisons, 6)[None], torch.ones(1, 6, dtype=torch.bool), 0.1)
    theirs = tensor(RECORDED["bradley_terry"][peer], dtype=F64)
    torch.testing.assert_close(found.theta_PS[0], theirs - theirs.mean(), rtol=0, atol=tolerance)


def test_names_are_the_words_that_rjieba_tags_so(monkeypatch):
    [[sentence, tagged]] = RECORDED["tags"]
    recorded = type("Tagger", (), {"tag": staticmethod({sentence: tagged}.get)})
    monkeypatch.setitem(sys.modules, "rjieba", recorded)
    assert chinese_entities(sentence) == {word for word, tag in tagged if tag in ("nr", "ns", "nt")}
