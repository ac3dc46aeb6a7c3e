"""Addresses of servers and their key: what is taken, what is refused, and that the key is never shown."""

import copy
from pathlib import Path

import pytest

from swift_rlx.backends.remote_endpoint import (
    FILE_VARIABLE,
    KEY_VARIABLE,
    ApiKey,
    parse_endpoints,
    read_api_key,
    unused_proxies,
)
from swift_rlx.errors import ConfigError

SECRET = "sk-3f9a77"


@pytest.mark.parametrize(
    ("text", "url", "host", "port", "is_local"),
    [
        ("http://gpu7:8000", "http://gpu7:8000", "gpu7", 8000, False),
        ("http://GPU7:8000/", "http://gpu7:8000", "gpu7", 8000, False),
        ("https://a.example/vllm/", "https://a.example:443/vllm", "a.example", 443, False),
        ("http://localhost", "http://localhost:80", "localhost", 80, True),
        ("http://127.0.0.1:1", "http://127.0.0.1:1", "127.0.0.1", 1, True),
        ("http://[::1]:30000", "http://[::1]:30000", "::1", 30000, True),
        ("http://10.0.0.7:30000", "http://10.0.0.7:30000", "10.0.0.7", 30000, False),
    ],
)
def test_an_address_is_written_in_one_way(text: str, url: str, host: str, port: int, is_local: bool) -> None:
    [endpoint] = parse_endpoints([text])
    assert (endpoint.url, endpoint.host, endpoint.port, endpoint.is_local) == (url, host, port, is_local)
    assert endpoint.is_encrypted == text.startswith("https")


@pytest.mark.parametrize(
    "text",
    ["", "gpu7:8000", "gpu7", "ftp://gpu7", "http://", "http://gpu7:99999", "http://gpu7:x", "http://a b", "http://[1",
     "http://gpu7?key=1", "http://gpu7#x", "http://gpu7\n", "http://gpü7"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--rollout_endpoints .* is refused: give the address of a server"
    ):
        parse_endpoints([text])


def test_the_address_of_an_openai_interface_is_refused_with_that_of_its_server() -> None:
    for text in ("http://gpu7:8000/v1", "https://a.example/vllm/v1/"):
        with pytest.raises(ConfigError, match=r"/v1 is refused: .* the server itself, http.*(7:8000|/vllm)$"):
            parse_endpoints([text])


def test_one_server_under_two_spellings_is_refused() -> None:
    with pytest.raises(ConfigError, match="names http://gpu7:80 twice"):
        parse_endpoints(["http://gpu7", "http://gpu8", "http://GPU7:80/"])


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match=f"for gpu7, which would stand in logs: .*{KEY_VARIABLE}") as caught:
        parse_endpoints([f"http://me:{SECRET}@gpu7:8000"])
    assert SECRET not in str(caught.value)


def test_the_key_comes_from_a_variable_or_a_file(tmp_path: Path) -> None:
    assert read_api_key({}) is None
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    for environment in ({KEY_VARIABLE: f" {SECRET} "}, {FILE_VARIABLE: str(file)}):
        key = read_api_key(environment)
        assert key is not None
        assert key.headers == {"Authorization": f"Bearer {SECRET}"}


def test_nothing_that_prints_a_key_shows_it() -> None:
    key = ApiKey(SECRET)
    assert SECRET not in f"{key} {key!r} {[key]} { ({'key': key}) }"
    assert key.redacted(f"wrong key {SECRET}!") == "wrong key ***!"
    assert repr(copy.copy(key)) == "ApiKey(***)"


@pytest.mark.parametrize("text", ["two words", "line\nbreak", "schlüssel", "x" * 5000, " "])
def test_what_is_no_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{KEY_VARIABLE} is refused: a key is one word") as caught:
        read_api_key({KEY_VARIABLE: text})
    assert text not in str(caught.value) or text == " "


def test_two_keys_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{KEY_VARIABLE} and {FILE_VARIABLE} are both set") as caught:
        read_api_key({KEY_VARIABLE: SECRET, FILE_VARIABLE: "/x"})
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match=f"{FILE_VARIABLE} .*/none cannot be read: .*No such file"):
        read_api_key({FILE_VARIABLE: str(tmp_path / "none")})
    empty = tmp_path / "empty"
    empty.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_api_key({FILE_VARIABLE: str(empty)})


def test_proxies_that_would_be_used_elsewhere_are_named() -> None:
    environment = {"http_proxy": "http://p:1", "HTTPS_PROXY": "http://p:2", "ALL_PROXY": ""}
    plain, encrypted = parse_endpoints(["http://a", "https://a"])
    assert unused_proxies(plain, environment) == "http_proxy"
    assert unused_proxies(encrypted, environment) == "HTTPS_PROXY"
    assert unused_proxies(plain, {}) == ""
