"""Files of trajectories: exact, whole units only, whatever happens to their end."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from sandbox import REPOSITORY
from stored_groups import facts, groups, plain_group

from swift_rlx.errors import StoreError
from swift_rlx.store import ShardWriter, read_metadata, read_shard
from swift_rlx.store.schema import checksum, columns

GROUPS = some.lists(groups(), max_size=3, unique_by=lambda group: group.order)
UNITS = some.lists(some.tuples(GROUPS, some.text(max_size=4)), max_size=4)


def write(path, units, **metadata):
    writer = ShardWriter(path, metadata)
    for each, note in units:
        writer.add(each, note)
        writer.flush()
    writer.close()
    return path


def contents(shard):
    return [([facts(group) for group in unit.groups], unit.note) for unit in shard.units]


def a_file(tmp_path, count=2):
    """Its path, and the byte at which each of its units ends."""
    writer, ends = ShardWriter(tmp_path / "a.arrow"), []
    for number in range(count):
        writer.add([plain_group(number, members=1)], f"note {number}")
        writer.flush()
        ends.append(writer.num_bytes)
    writer.abandon()
    return writer.path, ends


@given(UNITS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_bit_for_bit(tmp_path, units):
    path = tmp_path / "shard.arrow"
    path.unlink(missing_ok=True)
    shard = read_shard(write(path, units, owner="a test"))
    assert contents(shard) == [([facts(group) for group in each], note) for each, note in units]
    assert (shard.metadata, shard.cut_bytes) == ({"format": "1", "owner": "a test"}, 0)
    assert read_metadata(path) == shard.metadata


def test_an_ordinary_arrow_reader_opens_the_file(tmp_path):
    path = write(tmp_path / "a.arrow", [([plain_group(5)], ""), ([], "only a note"), ([plain_group(6)], "")])
    table = pa.ipc.open_stream(path).read_all()
    assert table.column("token_ids").to_pylist() == [[5, 6, 7, 8]] * 2 + [[6, 7, 8, 9]] * 2
    assert table.column("policy_step_lengths").to_pylist() == [[4]] * 4
    assert table.column("breakdown")[0].as_py() == [{"name": "length", "value": 1.0, "version": "2"}]


def test_a_file_that_ends_at_any_byte_of_its_last_unit_gives_the_units_before_it(tmp_path):
    path, ends = a_file(tmp_path)
    whole, data = contents(read_shard(path)), path.read_bytes()
    torn = tmp_path / "torn.arrow"
    for length in range(ends[-2], ends[-1]):
        torn.write_bytes(data[:length])
        shard = read_shard(torn)
        assert [unit.note for unit in shard.units] == ["note 0"]
        assert shard.cut_bytes == length - ends[-2]
    assert contents(shard) == whole[:1]
    assert contents(read_shard(path)) == whole
    assert read_shard(path).cut_bytes == 0, "without the mark of its end, but whole"


def test_a_file_without_a_whole_beginning_holds_nothing(tmp_path):
    path, _ = a_file(tmp_path, count=1)
    data = path.read_bytes()
    for length in (0, 1, 8, 100):
        path.write_bytes(data[:length])
        assert (read_shard(path).units, read_shard(path).cut_bytes) == ((), length)
        assert read_metadata(path) is None
    path.write_bytes(b"no arrow file at all, but long enough to look into")
    assert read_shard(path).cut_bytes == 50


def test_a_file_of_which_the_end_was_never_written_is_cut_there(tmp_path):
    """After a loss of power a file may have its length, but zeros in the place of the last blocks."""
    path, ends = a_file(tmp_path)
    whole, data = contents(read_shard(path)), path.read_bytes()
    for begin in range(ends[-2], ends[-1] - 8, 29):
        path.write_bytes(data[:begin] + bytes(len(data) - begin))
        found = read_shard(path)
        assert contents(found) in (whole[:1], whole), "where it is whole, only padding was lost"
        assert found.cut_bytes == (0 if len(found.units) == 2 else len(data) - ends[-2])


def test_an_altered_byte_never_changes_what_is_read(tmp_path):
    path, ends = a_file(tmp_path)
    whole, data, noticed = contents(read_shard(path)), path.read_bytes(), 0
    for at in range(ends[0], ends[1], 5):
        altered = bytearray(data)
        altered[at] ^= 0x41
        path.write_bytes(altered)
        found = contents(read_shard(path))
        assert found in (whole, whole[:1]), f"byte {at}"
        noticed += found == whole[:1]
    assert noticed > (ends[1] - ends[0]) / 5 / 2, "the rest is padding"


def test_what_a_full_disk_refused_is_written_by_the_next_flush(tmp_path, monkeypatch):
    path, pwrite, room = tmp_path / "a.arrow", os.pwrite, [3000]

    def write_while_there_is_room(descriptor, data, offset):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = pwrite(descriptor, data[: room[0]], offset)
        room[0] -= count
        return count

    writer = ShardWriter(path)
    monkeypatch.setattr(os, "pwrite", write_while_there_is_room)
    writer.add([plain_group(0)], "first")
    for note in ("second", "third"):
        with pytest.raises(
            StoreError, match=r"a\.arrow' cannot be written: No space left on device; make room"
        ):
            writer.flush()
        writer.add([plain_group(1)], note)
    assert read_shard(path).units == ()
    room[0] = 10**6
    writer.close()
    assert [unit.note for unit in read_shard(path).units] == ["first", "second", "third"]


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    path = write(tmp_path / "a.arrow", [])
    with pytest.raises(StoreError, match="File exists"):
        ShardWriter(path)
    shutil.rmtree(tmp_path)
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        read_shard(path)
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        read_metadata(path)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (columns().with_metadata({"format": "9"}), "has format 9 of trajectories, and this version reads 1"),
        (columns(), "has format unknown"),
        (columns().remove(7).with_metadata({"format": "1"}), "lacks the columns token_ids"),
    ],
)
def test_another_format_is_refused(tmp_path, schema, message):
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema):
        pass
    for read in (read_shard, read_metadata):
        with pytest.raises(StoreError, match=message):
            read(path)


def test_further_columns_are_passed_over(tmp_path):
    wider = columns().append(pa.field("text", pa.string())).with_metadata({"format": "1"})
    path = write(tmp_path / "a.arrow", [([plain_group(0)], "")])
    batch = pa.ipc.open_stream(pa.BufferReader(path.read_bytes())).read_next_batch()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, wider) as stream:
        batch = pa.RecordBatch.from_arrays([*batch.columns, pa.array(["a", "b"])], schema=wider)
        stream.write_batch(batch, {"crc32": str(checksum(batch, ""))})
    [unit] = read_shard(path).units
    assert facts(unit.groups[0]) == facts(plain_group(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"info": {"image": object()}}, r"Completion\.info of member 0 of prompt \(0, 4\) cannot be stored"),
        ({"worker": "\ud800"}, "does not fit into the columns of the store"),
        ({"incarnation": 2**40}, "does not fit into the columns of the store"),
    ],
)
def test_what_has_no_place_in_the_columns_is_refused_and_nothing_of_it_is_written(tmp_path, change, message):
    group = plain_group(4)
    odd = replace(group.members[0], completion=replace(group.members[0].completion, **change))
    writer = ShardWriter(tmp_path / "a.arrow")
    with pytest.raises(StoreError, match=message):
        writer.add([replace(group, members=(odd,))])
    writer.add([group])
    writer.close()
    assert [len(unit.groups) for unit in read_shard(writer.path).units] == [1]


def test_policy_steps_take_a_few_bytes_where_they_do_not_change(tmp_path):
    group = plain_group(0, tokens=1000, members=1)
    size = write(tmp_path / "a.arrow", [([group], "")]).stat().st_size
    assert size < 8 * 1000 + 6000
    steps = read_shard(tmp_path / "a.arrow").units[0].groups[0].members[0].completion.policy_steps
    assert steps.dtype == np.int32
    assert steps.tolist() == [0] * 1000


def test_arrow_is_imported_only_when_a_file_is_touched():
    code = "import sys, swift_rlx.store, swift_rlx.scheduler; print('pyarrow' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "False\n"
