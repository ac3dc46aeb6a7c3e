"""The line beside the progress bar."""

from __future__ import annotations

import pytest

from swift_rlx.monitors import progress_line
from swift_rlx.monitors.progress import short_number

VALUES = {
    "rollout/inflight": 23.0,
    "rollout/ready": 2.0,
    "rollout/staleness_mean": 1.24,
    "rollout/staleness_max": 2.0,
    "rollout/tokens_per_s": 1880.0,
    "rollout/trainer_busy": 0.941,
}


def test_the_line_says_what_the_pipeline_does():
    line = "rollout 23 in flight, 2 ready, staleness 1.2 (max 2), 1.9k tok/s, trainer 94 % busy"
    assert progress_line(VALUES) == line
    assert progress_line(VALUES, width=len(line)) == line


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (82, "rollout 23 in flight, 2 ready, staleness 1.2 (max 2), trainer 94 % busy"),
        (60, "rollout 2 ready, staleness 1.2 (max 2), trainer 94 % busy"),
        (50, "rollout staleness 1.2 (max 2), trainer 94 % busy"),
        (30, "rollout trainer 94 % busy"),
        (20, ""),
    ],
)
def test_in_a_narrow_place_the_least_telling_parts_go(width, line):
    assert progress_line(VALUES, width) == line


def test_what_is_not_known_is_left_out():
    assert progress_line({"rollout/ready": 0.0, "rollout/staleness_max": 1.0}) == "rollout 0 ready"
    assert progress_line({}) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.6, "1.0k"),
        (9940, "9.9k"),
        (9960, "10k"),
        (999_400, "999k"),
        (1.25e6, "1.2M"),
    ],
)
def test_numbers_are_short(value, text):
    assert short_number(value) == text
