"""What the parts that do not know ms-swift have to say during a run, in the log where ms-swift writes its own."""

import logging

from swift.utils import get_logger

from swift_rlx.integration.bar_lines import BesideBars

logger = get_logger()
WRITERS = (logging.StreamHandler, logging.FileHandler)
"""What ms-swift writes its log with. Others that hang on its logger hang on the root too, and get our records there."""


class RunLog(logging.Handler):
    """Hands records to what writes ms-swift's log at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        for handler in logger.handlers:
            if type(handler) in WRITERS and record.levelno >= handler.level:
                handler.handle(record)


def show_in_log_of_run() -> None:
    """From now on, in this process; to call it again changes nothing.

    Only the first rank of a machine tells more than warnings. What is told keeps clear of progress bars.
    """
    ours = logging.getLogger("swift_rlx")
    ours.setLevel(min(logger.level, logging.WARNING))
    if not any(isinstance(handler, RunLog) for handler in ours.handlers):
        ours.addHandler(RunLog())
    for handler in logger.handlers:
        if type(handler) is logging.StreamHandler and not isinstance(handler.stream, BesideBars):
            handler.setStream(BesideBars(handler.stream))
