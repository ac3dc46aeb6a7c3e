"""A writer that is killed: what it has sealed is there, once, and what it has not is nowhere."""

from __future__ import annotations

import pytest
from killed_writer import kill_writers


@pytest.mark.slow
def test_every_sealed_row_survives_the_killing_of_its_writer_and_none_is_double(tmp_path):
    for _ in range(20):  # on a busy machine none may live long enough to seal anything
        found = kill_writers(tmp_path, 12)
        if found["sealed_rounds"] > 1:
            break
    assert found["readable_rows"] == found["rows_of_sealed_rounds"] > 64
    assert (found["double_rows"], found["damaged_shards"]) == (0, 0)
