"""Loggers of the parts that do not know ms-swift write where a run is read."""

import io
import logging
from collections.abc import Iterator

import pytest
from swift.utils import get_logger

from swift_rlx.integration.run_log import show_in_log_of_run

OURS = logging.getLogger("swift_rlx")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The log of the run, from here on."""
    kept = [*OURS.handlers], OURS.level, get_logger().level
    stream = io.StringIO()
    [handler] = [one for one in get_logger().handlers if type(one) is logging.StreamHandler]
    before = handler.setStream(stream)
    OURS.handlers.clear()
    get_logger().setLevel(logging.INFO)
    yield stream
    handler.setStream(before)
    OURS.handlers[:] = kept[0]
    OURS.setLevel(kept[1])
    get_logger().setLevel(kept[2])


def test_what_is_said_of_a_shadow_is_in_the_log_once(written: io.StringIO) -> None:
    for _ in range(2):
        show_in_log_of_run()
    logging.getLogger("swift_rlx.rewards.x").info("v3 and its shadow v4 agree")
    assert written.getvalue() == "[INFO:swift_rlx.rewards.x] v3 and its shadow v4 agree\n"


def test_another_rank_tells_its_warnings_alone(written: io.StringIO) -> None:
    get_logger().setLevel(logging.ERROR)  # as ms-swift has it there
    show_in_log_of_run()
    OURS.info("waiting")
    OURS.warning("a worker was lost")
    assert written.getvalue() == "[WARNING:swift_rlx] a worker was lost\n"
