"""What tests ask about processes is answered while processes end."""

import os
import subprocess
import sys

import psutil
from descendants import descendants


def test_a_process_that_has_ended_and_was_not_reaped_is_left_out() -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert psutil.Process(ended.pid).status() == psutil.STATUS_ZOMBIE
        assert ended.pid not in {one.pid for one in descendants(os.getpid())}
    finally:
        ended.wait()
    assert descendants(ended.pid) == [], "nor is a parent that is gone an error"


def test_processes_are_told_by_their_command_line() -> None:
    waiting = subprocess.Popen([sys.executable, "-c", "input()  # by-its-words"], stdin=subprocess.PIPE)
    try:
        assert [one.pid for one in descendants(os.getpid(), "by-its-words")] == [waiting.pid]
    finally:
        waiting.communicate(b"\n")
