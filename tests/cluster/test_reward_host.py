"""How the program of a scoring process ends: with its connection, whatever happens to that."""

from __future__ import annotations

import select
import socket
import struct
import threading

import pytest

from swift_rlx.cluster.reward_host import serve
from swift_rlx.cluster.reward_messages import Load, encode_for_scorer


@pytest.fixture
def served():
    """Our end of the connection, and the thread that serves the other one."""
    ours, theirs = socket.socketpair()
    ends = []

    def run():
        serve(theirs)
        ends.append("by itself")

    thread = threading.Thread(target=run)
    thread.start()
    yield ours
    ours.close()
    thread.join(10)
    theirs.close()
    assert ends == ["by itself"]


def _question():
    data = encode_for_scorer(Load("x", "no_such_module:reward", {}))
    return struct.pack(">Q", len(data)) + data


def test_a_trainer_that_closes_is_the_end(served):
    served.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("missing", [1, 5, 60])
def test_a_question_that_was_cut_off_is_the_end(missing, served):
    """The trainer was killed while it asked."""
    served.sendall(_question()[:-missing])


def test_a_connection_that_is_reset_is_the_end(served):
    """The trainer was killed with an answer unread."""
    served.sendall(_question())
    select.select([served], [], [], 10)
