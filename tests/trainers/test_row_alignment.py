"""Rows whose tokens in training are not those that were sampled are said to be lost, not only counted."""

import numpy as np
import pytest
import torch

from swift_rlx.errors import ConfigError
from swift_rlx.trainers import row_alignment
from swift_rlx.trainers.rollout_rows import Row
from swift_rlx.trainers.row_alignment import AlignedRows, AlignmentWatch, align


def row(tokens: int, is_filler: bool = False) -> Row:
    return Row(
        epoch=0, index=0, member=0, finish_reason="stop", rewards=[], is_filler=is_filler,
        token_ids=np.arange(tokens, dtype="<i4").tobytes(),
        logprobs=np.arange(tokens, dtype="<f4").tobytes(),
        staleness=np.arange(tokens, dtype="<i4").tobytes(),
        fresh=np.ones(tokens, bool).tobytes(),
    )  # fmt: skip


def aligned(*rows: Row, masks: list[list[int]]) -> AlignedRows:
    return align(rows, [torch.tensor(masks)])


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(row_alignment.logger, "warning", said.append)
    return said


def test_facts_go_where_the_mask_says_the_token_is() -> None:
    found = aligned(row(2), row(3), masks=[[0, 1, 0, 1], [1, 1, 1, 0]])
    assert found.behavior_nT.tolist() == [[0, 0, 0, 1], [0, 1, 2, 0]]
    assert found.staleness_nT.tolist() == [[0, 0, 0, 1], [0, 1, 2, 0]]
    assert found.usable_n.tolist() == [True, True]
    assert found.lengths is None


def test_rows_that_do_not_align_are_told_with_their_lengths_once(warnings: list[str]) -> None:
    watch = AlignmentWatch()
    found = aligned(row(2), row(3), row(2, is_filler=True), masks=[[1, 1, 0], [1, 1, 0], [1, 1, 0]])
    assert found.usable_n.tolist() == [True, False, False]
    fillers = torch.tensor([False, False, True])
    for _ in range(2):
        watch.check(found.usable_n, fillers, found.lengths)
    assert len(warnings) == 1
    assert "1 of 3 answers" in warnings[0]
    assert "3 sampled tokens and 2 in training" in warnings[0]


def test_fillers_are_no_loss(warnings: list[str]) -> None:
    found = aligned(row(2), row(2, is_filler=True), masks=[[1, 1], [1, 1]])
    AlignmentWatch().check(found.usable_n, torch.tensor([False, True]), found.lengths)
    assert not warnings


def test_a_first_batch_of_which_nothing_aligns_ends_the_run() -> None:
    found = aligned(row(3), row(4), masks=[[1, 1], [1, 1]])
    none = torch.tensor([False, False])
    with pytest.raises(
        ConfigError, match=r"^2 of 2 answers .* 3 sampled tokens and 2 in training, so that nothing"
    ):
        AlignmentWatch().check(found.usable_n, none, found.lengths)
    later = AlignmentWatch()
    later.check(torch.tensor([True, True]), none, None)
    later.check(found.usable_n, none, found.lengths)
