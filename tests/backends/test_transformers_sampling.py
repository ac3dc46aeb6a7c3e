"""The draw of a token: frequencies are exact, because the uniform numbers are laid out evenly."""

from __future__ import annotations

import pytest
import torch

from swift_rlx.backends.transformers_sampling import Filters, draw, draw_rows

DRAWS = 20_000
LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.0, -3.0])
NO_FILTER = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
UNIFORMS = [(place + 0.5) / DRAWS for place in range(DRAWS)]


def filters(**fields):
    return Filters(**{"temperature": 1.0, **NO_FILTER, **fields})


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (filters(), 6),
        (filters(temperature=0.7), 6),
        (filters(top_k=3), 3),
        (filters(top_p=0.8), 3),
        (filters(min_p=0.2), 3),
        (filters(top_k=4, top_p=0.9, temperature=1.5), 4),
    ],
)
def test_every_token_is_drawn_as_often_as_its_log_prob_says(kind, kept):
    tokens, logprobs = draw(LOGITS.expand(DRAWS, -1), torch.zeros(DRAWS, 1).long(), kind, UNIFORMS)
    expected = (LOGITS / kind.temperature)[:].clone()
    expected[torch.argsort(LOGITS, descending=True)[kept:]] = -torch.inf
    expected = expected.log_softmax(-1)
    counts = torch.bincount(tokens, minlength=len(LOGITS))
    assert (counts - DRAWS * expected.exp()).abs().max() <= 1.01
    torch.testing.assert_close(logprobs, expected[tokens])


def test_the_last_uniform_number_never_reaches_a_token_that_was_filtered_out():
    logits = torch.cat([torch.zeros(50), torch.full((10,), -torch.inf)])
    tokens, logprobs = draw(logits[None], torch.zeros(1, 1).long(), filters(), [1 - 2**-53])
    assert tokens.item() == 49
    assert logprobs.isfinite().all()


def test_a_penalty_counts_a_token_once_however_often_it_came():
    logits = LOGITS.expand(2, -1)
    ids = torch.tensor([[0, 0, 0, 3], [0, 3, 3, 3]])
    tokens, logprobs = draw(logits, ids, filters(temperature=0.0, repetition_penalty=4.0), [0.0, 0.0])
    changed = LOGITS.clone()
    changed[0], changed[3] = 0.5, -4.0
    assert tokens.tolist() == [1, 1]
    torch.testing.assert_close(logprobs, changed.log_softmax(-1)[[1, 1]])


@pytest.mark.parametrize("kind", [filters(barred=(0, 2)), filters(temperature=0.0, barred=(0, 2))])
def test_a_barred_token_is_never_drawn_and_the_others_share_its_probability(kind):
    tokens, logprobs = draw(LOGITS.expand(100, -1), torch.zeros(100, 1).long(), kind, UNIFORMS[::200])
    left = LOGITS.clone()
    left[[0, 2]] = -torch.inf
    assert set(tokens.tolist()) & {0, 2} == set()
    torch.testing.assert_close(logprobs, left.log_softmax(-1)[tokens])


def test_rows_keep_their_own_filters():
    kinds = [filters(), filters(temperature=0.0), filters(top_k=2), filters()]
    uniforms = [0.99, 0.99, 0.99, 0.1]
    logits, ids = LOGITS + torch.arange(4)[:, None] * torch.linspace(0, 1, 6), torch.zeros(4, 1).long()
    tokens, logprobs = draw_rows(logits, ids, kinds, uniforms)
    for row, kind in enumerate(kinds):
        one, logprob = draw(logits[row : row + 1], ids[:1], kind, uniforms[row : row + 1])
        assert tokens[row] == one[0]
        torch.testing.assert_close(logprobs[row], logprob[0])


@pytest.mark.parametrize("kind", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.9}])
def test_a_barred_token_is_left_out_before_every_other_filter(kind):
    barred, without = filters(barred=(0, 3), **kind), LOGITS.clone()
    without[[0, 3]] = -torch.inf
    logits, ids, uniforms = LOGITS.expand(100, -1), torch.zeros(100, 1).long(), UNIFORMS[::200]
    tokens, logprobs = draw(logits, ids, barred, uniforms)
    expected = draw(without.expand(100, -1), ids, filters(**kind), uniforms)
    assert not {0, 3} & set(tokens.tolist())
    assert tokens.tolist() == expected[0].tolist()
    torch.testing.assert_close(logprobs, expected[1])
