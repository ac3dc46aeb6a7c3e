"""A line of the log beside a progress bar, on a terminal and in a file."""

import io
import logging

import pytest
from tqdm import tqdm

from swift_rlx.integration import bar_lines
from swift_rlx.integration.bar_lines import BesideBars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(text: str) -> list[str]:
    """As they are seen at the end: what a carriage return was followed by is written over."""
    return [line.rstrip("\r").split("\r")[-1].rstrip() for line in text.split("\n")]


@pytest.fixture(autouse=True)
def _log_lines_are_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar_lines, "TOGETHER_S", -1.0)


def logger_on(stream: io.StringIO) -> logging.Logger:
    logger = logging.Logger("of a test")
    logger.addHandler(logging.StreamHandler(BesideBars(stream)))
    return logger


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_a_line_is_on_a_line_of_its_own(kind: type[io.StringIO]) -> None:
    stream = kind()
    logger = logger_on(stream)
    logger.info("before")
    with tqdm(total=3, file=stream, desc="Train", mininterval=0) as bar:
        bar.update()
        logger.info("first")
        bar.update()
        bar.refresh()
        logger.info("second")
    logger.info("after")
    seen = [line for line in lines(stream.getvalue()) if line and not line.startswith("Train:")]
    assert seen == ["before", "first", "second", "after"]


def test_lines_at_once_have_no_empty_one_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar_lines, "TOGETHER_S", 60.0)
    stream = io.StringIO()
    logger = logger_on(stream)
    with tqdm(total=3, file=stream, desc="Train"):
        logger.info("first")
        logger.info("second")
        assert stream.getvalue().endswith("\nfirst\nsecond\n")


def test_the_bar_of_another_stream_changes_nothing() -> None:
    stream = io.StringIO()
    with tqdm(total=3, file=io.StringIO()):
        logger_on(stream).info("alone")
    assert stream.getvalue() == "alone\n"


def test_the_log_of_our_runs_is_written_so() -> None:
    from swift.utils import get_logger

    from swift_rlx.integration.run_log import show_in_log_of_run

    show_in_log_of_run()
    show_in_log_of_run()
    (stream,) = [each.stream for each in get_logger().handlers if type(each) is logging.StreamHandler]
    assert type(stream) is BesideBars
    assert type(stream._stream) is not BesideBars
