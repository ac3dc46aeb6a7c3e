"""The journal on disk: what was added is there after a crash, chains of segments, full disks, bounded size."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from resumed_runs import Life, plan_of
from sandbox import REPOSITORY
from stored_groups import facts, plain_group

from swift_rlx.errors import StoreError
from swift_rlx.scheduler import journal, load_state, save_state, segment_log
from swift_rlx.scheduler.journal import Journal, go_on
from swift_rlx.scheduler.journal_entries import Admitted, Dropped, PickedUp, Scored, decode, encode
from swift_rlx.scheduler.journal_segments import Position, Segment, read_past
from swift_rlx.types import DropReason

ENTRIES = [
    Admitted(7, 1, 40),
    Scored(plain_group(7)),
    Admitted(8, 1, 41),
    Dropped(8, DropReason.NO_SPREAD, 31),
    Scored(plain_group(9)),
    PickedUp(3, (9, 7), 5, True),
]


@pytest.fixture
def made(tmp_path):
    """Makes journals that are closed at the end."""
    opened = []

    def make(**options):
        opened.append(Journal(tmp_path / "journal", **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def orders(directory, name):
    return [entry.order for entry in read_past(directory, name).entries]


def add(log, *numbers):
    for number in numbers:
        log.add(Admitted(number, 0, number))
    assert log.flush()


def test_entries_come_back_as_they_were():
    back = decode(*encode(ENTRIES))
    assert [one for one in back if not isinstance(one, Scored)] == [
        one for one in ENTRIES if not isinstance(one, Scored)
    ]
    assert [type(one) for one in back] == [type(one) for one in ENTRIES]
    assert facts(back[1].group) == facts(ENTRIES[1].group)


@pytest.mark.parametrize(
    "note", ["", "{", "[1]", '[["scored"]]', '[["new", 1]]', '[["admitted", 1, 2, "x"]]']
)
def test_a_note_that_no_journal_wrote_is_refused(note):
    with pytest.raises(StoreError, match="has a note that cannot be read"):
        decode([], note)


def test_nothing_is_kept_before_the_first_snapshot(made, tmp_path):
    log = made()
    add(log, 1, 2)
    assert not (tmp_path / "journal").exists()
    name = log.cut()
    add(log, 3)
    assert orders(tmp_path / "journal", name) == [3]


def test_from_each_snapshot_on_one_finds_what_came_behind_it(made, tmp_path):
    log, directory = made(incarnation=4), tmp_path / "journal"
    names = [log.cut()]
    for number in range(4):
        if number != 2:
            add(log, number)
        names.append(log.cut())
    assert [orders(directory, name) for name in names] == [[0, 1, 3], [1, 3], [3], [3], []]
    assert names[2] == names[3], "nothing happened between the two"
    past = read_past(directory, names[0])
    assert (past.incarnation, past.cut_bytes, past.end) == (4, 0, Position(names[3], 1))
    assert len(list(directory.iterdir())) == 3


def test_a_start_goes_on_where_the_one_before_was_torn(made, tmp_path):
    directory, log = tmp_path / "journal", made()
    name = log.cut()
    add(log, 0)
    add(log, 1)
    log.close()
    path = directory / f"{name}.arrow"
    path.write_bytes(path.read_bytes()[:-40])
    past = read_past(directory, name)
    assert (len(past.entries), past.end, past.cut_bytes > 0) == (1, Position(name, 1), True)
    second = made(incarnation=1, first=Segment(directory, "second", past.end, 1))
    add(second, 5)
    third = second.cut()
    add(second, 6)
    assert orders(directory, name) == [0, 5, 6]
    assert orders(directory, third) == [6]
    assert read_past(directory, name).incarnation == 1


def test_nothing_follows_a_segment_of_which_a_part_was_lost(made, tmp_path):
    directory, log = tmp_path / "journal", made()
    name = log.cut()
    add(log, 0)
    add(log, 1)
    log.cut()
    add(log, 2)
    path = directory / f"{name}.arrow"
    path.write_bytes(path.read_bytes()[:-40])
    assert orders(directory, name) == [0]


def test_a_batch_that_is_picked_up_is_written_at_once_with_all_before_it(made, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "REST_S", 60.0)
    monkeypatch.setattr(journal, "REST_PER_WORK", 1e9)
    log = made()
    name = log.cut()
    for entry in ENTRIES * 3:  # the thread rests after the first ones that it finds
        log.add(entry)
    end_s = time.monotonic() + 30.0
    while len(read_past(tmp_path / "journal", name).entries) < 3 * len(ENTRIES):
        assert time.monotonic() < end_s, "the entries wait until the rest is over"
        time.sleep(0.01)


def test_segments_that_no_checkpoint_needs_are_deleted(made, tmp_path):
    directory, log = tmp_path / "journal", made()
    names = []
    for number in range(5):
        names.append(log.cut())
        add(log, number)
    log.release({names[3]})
    assert log.flush()
    assert sorted(path.stem for path in directory.iterdir()) == sorted(names[3:])
    log.release(set())
    assert log.flush()
    assert [path.stem for path in directory.iterdir()] == names[4:]


def test_what_was_added_survives_the_death_of_the_process(tmp_path):
    code = f"""
import os, signal, sys
sys.path.insert(0, "tests/support")
from pathlib import Path
from stored_groups import plain_group
from swift_rlx.scheduler.journal import Journal
from swift_rlx.scheduler.journal_entries import Scored
log = Journal(Path({str(tmp_path)!r}))
print(log.cut())
for number in range(100):
    log.add(Scored(plain_group(number)))
assert log.flush()
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == -9, result.stderr
    past = read_past(tmp_path, result.stdout.strip())
    assert [entry.group.order for entry in past.entries] == list(range(100))


class Disk:
    """Takes `room` bytes more."""

    def __init__(self, monkeypatch, room):
        self.room, self._pwrite = room, os.pwrite
        monkeypatch.setattr(os, "pwrite", self.write)

    def write(self, descriptor, data, offset):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self._pwrite(descriptor, data[: self.room], offset)
        self.room -= count
        return count


def test_a_disk_that_is_full_for_a_while_costs_nothing(made, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(segment_log, "RETRY_EVERY_S", 0.01)
    disk, log = Disk(monkeypatch, 500), made()
    name = log.cut()
    for number in range(20):
        log.add(Scored(plain_group(number)))
    while "No space left on device" not in caplog.text:
        time.sleep(0.005)
    assert not log.flush(0.05)
    disk.room = 10**9
    assert log.flush()
    found = [entry.group.order for entry in read_past(tmp_path / "journal", name).entries]
    assert found == list(range(20))
    assert caplog.text.count("tries it again") == 1


def test_what_was_added_is_written_once_the_journal_is_closed(made, tmp_path):
    log = made()
    name = log.cut()
    log.add(Admitted(3, 0, 3))
    log.close()
    assert log.flush(0.05)
    assert orders(tmp_path / "journal", name) == [3]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_disk_that_refuses_the_end_of_a_segment_for_a_while_costs_nothing(tmp_path, monkeypatch, call):
    monkeypatch.setattr(segment_log, "RETRY_EVERY_S", 0.01)
    log, honest, refusals = segment_log.SegmentLog(), getattr(os, call), [2]
    log.begin(Segment(tmp_path, "a", Position(), 0))
    log.write([Admitted(1, 0, 1)])

    def refuse(descriptor, *arguments):
        if refusals[0]:
            refusals[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return honest(descriptor, *arguments)

    monkeypatch.setattr(os, call, refuse)
    log.begin(Segment(tmp_path, "b", Position("a", 1), 0))
    log.write([Admitted(2, 0, 2)])
    log.close()
    assert refusals == [0]
    assert orders(tmp_path, "a") == [1, 2]
    assert read_past(tmp_path, "a").cut_bytes == 0


def test_a_disk_that_stays_full_ends_the_run_with_one_sentence(made, monkeypatch):
    monkeypatch.setattr(segment_log, "RETRY_EVERY_S", 0.01)
    monkeypatch.setattr(segment_log, "RETRY_S", 0.05)
    Disk(monkeypatch, 500)
    log = made()
    log.cut()
    log.add(Scored(plain_group(1)))
    for call in (log.flush, log.cut, lambda: log.add(Admitted(1, 0, 1))):
        with pytest.raises(
            StoreError, match=r"cannot be written: No space left on device; make room .* then resume"
        ):
            call()


def test_a_disk_that_does_not_answer_ends_the_run_too(made, monkeypatch):
    monkeypatch.setattr(journal, "STALL_S", 0.05)
    log, is_over = made(), [False]

    def hang(descriptor, data, offset):
        while not is_over[0]:
            time.sleep(0.005)
        return len(data)

    monkeypatch.setattr(os, "pwrite", hang)
    log.cut()
    log.add(Admitted(1, 0, 1))
    time.sleep(0.2)
    with pytest.raises(StoreError, match="its disk does not answer"):
        log.add(Admitted(2, 0, 2))
    is_over[0] = True


def test_an_entry_that_cannot_be_stored_ends_the_run(made):
    log = made()
    log.cut()
    group = plain_group(1)
    odd = replace(group.members[0], completion=replace(group.members[0].completion, info={"x": object()}))
    log.add(Scored(replace(group, members=(odd,))))
    with pytest.raises(StoreError, match=r"Completion\.info of member 0"):
        log.flush()


def test_a_full_disk_is_raised_by_what_the_trainer_waits_for(made, monkeypatch):
    monkeypatch.setattr(segment_log, "RETRY_EVERY_S", 0.01)
    monkeypatch.setattr(segment_log, "RETRY_S", 0.02)
    log = made()
    log.cut()
    Disk(monkeypatch, 500)
    life = Life(plan_of(3))

    def flushed(entry):
        log_add(entry)
        log.flush()

    log_add = log.add
    log.add = flushed
    life.options = lambda watch: {"journal": log}
    with pytest.raises(StoreError, match="No space left on device"):
        life.live([])


@dataclass
class FiledLife(Life):
    """A life whose checkpoints and journal are files; each crash tears bytes off the newest of the journal."""

    directory: Path | None = None
    journal: Journal | None = None
    replayed: int = 0
    torn: int = 0

    def saves(self, chance):
        return self.checkpoint.state is None or chance.random() < 0.1

    def state(self):
        segments = self.directory / "journal"
        if self.journal is not None:
            self.journal.close()
            self._tear(sorted(segments.glob("*.arrow")))
        state = segment = None
        if self.checkpoint.state is not None:
            state, segment, cut_bytes = go_on(self.checkpoint.state, segments)
            self.replayed += len(state.replay)
            self.torn += cut_bytes > 0
        self.journal = Journal(segments, self.starts, segment)
        return state

    def _tear(self, files):
        chance = random.Random(self.starts)
        if files and chance.random() < 0.5:
            data = files[-1].read_bytes()
            files[-1].write_bytes(data[: -chance.randint(9, 2000)])

    def options(self, watch):
        return {"journal": self.journal}


def test_a_run_with_checkpoints_and_journal_on_disk_trains_what_the_undisturbed_one_trains(tmp_path):
    replayed = torn = 0
    for seed in range(4):
        plan = plan_of(seed)
        plan = replace(plan, batches=12, config=replace(plan.config, max_batches=12))
        life = FiledLife(plan, directory=tmp_path / str(seed))

        def keep(state, life=life):
            save_state(state, life.directory / "checkpoint")
            life.journal.release({state.journal})
            return load_state(life.directory / "checkpoint")

        life.keep, undisturbed = keep, Life(plan)
        undisturbed.live([])
        life.live([share * undisturbed.seconds for share in (0.6, 0.3, 0.8, 0.2)])
        life.journal.close()
        assert sorted(life.checkpoint.trained) == sorted(undisturbed.checkpoint.trained), seed
        assert sum(life.stats.tokens.values()) == life.stats.generated_tokens
        replayed, torn = replayed + life.replayed, torn + life.torn
    assert replayed > 10
    assert torn > 0


def test_the_cost_is_counted(made):
    log = made()
    log.cut()
    add(log, *range(50))
    cost = log.cost()
    assert (cost.entries, cost.num_bytes > 50) == (50, True)
    assert cost.seconds > 0
    assert 0 < cost.share < 1
