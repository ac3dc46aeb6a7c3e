"""What a service says where it can be reached."""

import socket

import pytest

from swift_rlx.cli.reward_serve import _say
from swift_rlx.reward_service.serving import hosts_in_addresses


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("127.0.0.1", ("127.0.0.1", "127.0.0.1")), ("::1", ("[::1]", "[::1]")), ("box.example", ("box.example",) * 2),
        ("0.0.0.0", (socket.gethostname(), "127.0.0.1")), ("::", (socket.gethostname(), "[::1]")),
    ],
)  # fmt: skip
def test_an_address_names_a_host_that_can_be_asked(host: str, hosts: tuple[str, str]) -> None:
    assert hosts_in_addresses(host) == hosts


class Served:
    """A service that was started."""

    class pool:
        offers = ()


def test_the_address_on_this_machine_is_told_where_it_is_another_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift_rlx.cli.reward_serve.signal.signal", lambda *_: None)
    _say("http://box:8101", "http://127.0.0.1:8101", Served)  # type: ignore[arg-type]
    assert capsys.readouterr().out.startswith(
        "ready at http://box:8101 (http://127.0.0.1:8101 on this machine); "
    )
    _say("http://127.0.0.1:8101", "http://127.0.0.1:8101", Served)  # type: ignore[arg-type]
    assert capsys.readouterr().out.startswith("ready at http://127.0.0.1:8101; health at ")
