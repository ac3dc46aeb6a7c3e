"""Tokens and limits of tenants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.reward_service import tenants as module
from swift_rlx.reward_service.tenants import Gate, Refused, Tenant, read_tenants, token_tenant

SECRET = "a-very-secret-token"


def written(tmp_path: Path, entries: Any) -> Path:
    file = tmp_path / "tenants.json"
    file.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return file


def test_tenants_of_a_file_are_told_apart_by_their_tokens(tmp_path):
    file = written(
        tmp_path,
        [
            {"name": "red", "token": SECRET, "requests_per_min": 60},
            {"name": "blue", "token": "x" * 8, "admin": True},
        ],
    )
    gate = Gate(read_tenants(file), lambda: 0.0)
    red, blue = gate.tenant(f"Bearer {SECRET}"), gate.tenant(f"bearer {'x' * 8}")
    assert (red.name, red.requests_per_min, red.is_admin) == ("red", 60, False)
    assert (blue.name, blue.is_admin) == ("blue", True)
    assert SECRET not in repr(red)


@pytest.mark.parametrize(
    "header", [None, "", SECRET, f"Basic {SECRET}", "Bearer", "Bearer wrong", f"Bearer {SECRET}x"]
)
def test_without_the_token_nothing_is_served(header):
    gate = Gate([token_tenant({"SWIFT_RLX_REWARD_TOKEN": SECRET})], lambda: 0.0)
    with pytest.raises(Refused, match="needs its token") as refused:
        gate.tenant(header)
    assert refused.value.status == 401


def test_without_tenants_everybody_may_ask():
    assert Gate((), lambda: 0.0).tenant(None).is_admin


def test_the_token_comes_from_a_variable_or_a_file(tmp_path):
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    by_file = token_tenant({"SWIFT_RLX_REWARD_TOKEN_FILE": str(file)})
    assert by_file == token_tenant({"SWIFT_RLX_REWARD_TOKEN": SECRET})
    assert token_tenant({}) is None
    with pytest.raises(ConfigError, match="are both set"):
        token_tenant({"SWIFT_RLX_REWARD_TOKEN": SECRET, "SWIFT_RLX_REWARD_TOKEN_FILE": str(file)})
    with pytest.raises(ConfigError, match="cannot be read"):
        token_tenant({"SWIFT_RLX_REWARD_TOKEN_FILE": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="one word") as refused:
        token_tenant({"SWIFT_RLX_REWARD_TOKEN": "two words of it"})
    assert "two words of it" not in str(refused.value)


@pytest.mark.parametrize(
    "entries",
    [
        "{", "{}", [], [{"name": "a"}], [{"name": "a", "token": "short"}], [{"name": "a b", "token": SECRET}],
        [{"name": "a", "token": SECRET}, {"name": "a", "token": SECRET + "2"}],
        [{"name": "a", "token": SECRET}, {"name": "b", "token": SECRET}],
        [{"name": "a", "token": SECRET, "requests_per_min": 0}],
        [{"name": "a", "token": SECRET, "max_row": 5}],
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused_without_showing_a_token(tmp_path, entries):
    with pytest.raises(ConfigError, match=r"refused|cannot be read") as refused:
        read_tenants(written(tmp_path, entries))
    assert SECRET not in str(refused.value)


def test_requests_over_the_rate_are_refused_until_time_has_passed():
    now = [0.0]
    gate, tenant = Gate([], lambda: now[0]), Tenant("red", requests_per_min=60)
    for _ in range(6):  # a tenth of a minute's at once
        gate.count_request(tenant)
    with pytest.raises(Refused, match="'red' is over its 60 requests a minute") as refused:
        gate.count_request(tenant)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    gate.count_request(Tenant("blue", requests_per_min=60))
    now[0] = 1.0
    gate.count_request(tenant)
    with pytest.raises(Refused, match="over its 60"):
        gate.count_request(tenant)
    now[0] = 1000.0
    for _ in range(6):
        gate.count_request(tenant)
    with pytest.raises(Refused, match="over its 60"):
        gate.count_request(tenant)


def test_rows_in_flight_are_counted_by_tenant_and_given_back():
    gate, red, blue = Gate([], lambda: 0.0), Tenant("red", max_rows=10), Tenant("blue", max_rows=10)
    with gate.holding_rows(red, 8):
        with (
            pytest.raises(Refused, match="8 of its 10 rows in flight; 3 more") as refused,
            gate.holding_rows(red, 3),
        ):
            pass
        assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
        with gate.holding_rows(blue, 10), gate.holding_rows(red, 2):
            pass
    with gate.holding_rows(red, 10):
        pass
    with pytest.raises(Refused, match="may have 10") as never, gate.holding_rows(red, 11):
        pass
    assert (never.value.status, never.value.retry_after_s) == (413, None)


def test_bytes_in_flight_are_bounded_and_given_back(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    gate, red = Gate([], lambda: 0.0), Tenant("red")
    with gate.holding_bytes(red) as hold:
        hold(60)
        with gate.holding_bytes(red) as other, pytest.raises(Refused, match="60 of 100 bytes"):
            other(41)
        hold(40)
    with gate.holding_bytes(red) as hold:
        hold(100)
