"""What a training says at Ctrl-C and SIGTERM, while its main thread is in C code."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading

from swift_rlx.cluster.stop_notice import StopNotice

BUSY = "hashlib.pbkdf2_hmac('sha256', b'', b'', 100_000_000)"
"""Minutes in C with the GIL released; no signal's Python code runs meanwhile."""


def started(body):
    """A process that runs `body` with a notice `stop`, once it has said that it is ready."""
    script = textwrap.dedent("""
        import asyncio, hashlib, os, signal, sys, time
        from swift_rlx.cluster import stop_notice

        def say(text):
            os.write(1, text.encode() + b"\\n")

        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop = stop_notice.StopNotice(lambda name: say(f"stopped by {name}"))
    """) + textwrap.dedent(body)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout.readline() == b"ready\n"
    return process


def ends(process, limit_s=20.0):
    """What it said until it ended, and its status."""
    said, _ = process.communicate(timeout=limit_s)
    return said.decode().splitlines(), process.returncode


def test_sigterm_is_told_and_ends_the_process_as_ever():
    process = started(f"with stop: say('ready'); {BUSY}")
    process.send_signal(signal.SIGTERM)
    assert ends(process) == (["stopped by SIGTERM"], -signal.SIGTERM)


def test_words_that_hang_do_not_keep_the_process_alive():
    process = started(
        f"""
        stop_notice.SAY_S, stop._say = 0.1, lambda name: time.sleep(600)
        with stop:
            say("ready")
            {BUSY}
        """
    )
    process.send_signal(signal.SIGTERM)
    assert ends(process) == ([], -signal.SIGTERM)


def test_ctrl_c_is_told_before_the_main_thread_knows_of_it():
    process = started(f"with stop: say('ready'); {BUSY}")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"stopped by Ctrl-C\n"
    process.kill()  # as `swift rlhf` does a quarter of a second later
    process.communicate()


def test_ctrl_c_is_told_once_and_raises_as_ever():
    process = started(
        """
        try:
            with stop:
                say("ready")
                time.sleep(60)
        except KeyboardInterrupt:
            say("interrupted")
        say(f"{signal.getsignal(signal.SIGTERM) is signal.SIG_DFL} {signal.set_wakeup_fd(-1)}")
        """
    )
    process.send_signal(signal.SIGINT)
    said, status = ends(process)
    assert {*said[:-1]} == {"interrupted", "stopped by Ctrl-C"}
    assert (len(said), said[-1], status) == (3, "True -1", 0)


def test_a_forked_process_has_its_own_end():
    """As a data loader's worker, which is ended by SIGTERM."""
    process = started(
        """
        reader, writer = os.pipe()
        with stop:
            child = os.fork()
            if not child:
                os.write(writer, b"forked")
                time.sleep(60)
                os._exit(0)
            say("ready")
            os.read(reader, 6)
            os.kill(child, signal.SIGTERM)
            say(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
            time.sleep(0.1)
        """
    )
    assert ends(process) == (["-15"], 0)


def test_a_handler_of_the_users_keeps_the_signal():
    process = started(
        """
        def own(number, frame):
            say("own")
        signal.signal(signal.SIGTERM, own)
        with stop:
            say("ready")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
        say(str(signal.getsignal(signal.SIGTERM) is own))
        """
    )
    assert ends(process) == (["own", "True"], 0)


def test_a_descriptor_that_was_taken_over_is_made_up_for():
    process = started(
        """
        with stop:
            signal.set_wakeup_fd(-1)
            say("ready")
            time.sleep(60)
        """
    )
    process.send_signal(signal.SIGTERM)
    assert ends(process) == (["stopped by SIGTERM"], -signal.SIGTERM)


def test_in_another_thread_nothing_is_done():
    found = []

    def run():
        with StopNotice(lambda name: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
