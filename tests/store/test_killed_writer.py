"""A writer that is killed: what it has sealed is there, once, and what it has not is nowhere."""

from __future__ import annotations

from killed_writer import kill_writers


def test_every_sealed_row_survives_the_killing_of_its_writer_and_none_is_double(tmp_path):
    found = kill_writers(tmp_path, 12)
    while found["sealed_rounds"] == 0:  # a busy machine lets none live long enough
        found = kill_writers(tmp_path, 12)
    assert found["readable_rows"] == found["rows_of_sealed_rounds"] > 0
    assert (found["double_rows"], found["damaged_shards"]) == (0, 0)
