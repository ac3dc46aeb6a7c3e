"""Spans of a lane: none overlaps another in its row, and there are no more rows than spans at once."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from swift_rlx.monitors.rows import MAX_ROWS, Rows


def _placed(spans):
    rows = Rows()
    return [(rows.place(start, finish), start, finish) for start, finish in spans]


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(SPANS)
def test_in_the_order_of_their_ends_spans_need_as_many_rows_as_overlap(found):
    spans = sorted(((start, start + length) for start, length in found), key=lambda span: span[1])
    placed = _placed(spans)
    for row in {row for row, _, _ in placed}:
        ends = [(start, finish) for where, start, finish in placed if where == row]
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
    moments = {start for start, _ in spans}
    most = max((sum(start <= at < finish for start, finish in spans) for at in moments), default=0)
    instants = sum(start == finish for start, finish in spans)
    assert len({row for row, _, _ in placed}) <= most + instants


def test_spans_in_any_order_never_overlap_in_a_row():
    chance = random.Random(0)
    spans = [(start, start + chance.random()) for start in (chance.uniform(0, 20) for _ in range(300))]
    seen: dict[int, list[tuple[float, float]]] = {}
    for row, start, finish in _placed(spans):
        assert all(start >= end or finish <= begin for begin, end in seen.get(row, []))
        seen.setdefault(row, []).append((start, finish))


def test_rows_are_bounded_whatever_times_come():
    rows = Rows()
    assert {rows.place(0, 10 + at) for at in range(3 * MAX_ROWS)} == set(range(MAX_ROWS))
