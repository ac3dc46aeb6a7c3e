"""Calls to a server: what each failure of the way becomes, what is read at most, and that the key stays secret."""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swift_rlx.backends import remote_http
from swift_rlx.backends.remote_endpoint import ApiKey, Endpoint, parse_endpoints, read_api_key
from swift_rlx.backends.remote_http import Call, HttpClient, Reply
from swift_rlx.errors import BackendRejected, BackendUnavailable, BackendUnfit, WorkerAbsent

SECRET = "sk-3f9a77"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def asked(
    handler: Handler,
    *calls: Call,
    key: ApiKey | None = None,
    tls: ssl.SSLContext | None = None,
    host: str = "",
    scheme: str = "",
) -> list[Any]:
    """What the client makes of each call: the reply or the error."""

    async def go() -> list[Any]:
        server = web.Server(handler)
        runner = web.ServerRunner(server, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        by = scheme or ("https" if tls else "http")
        client = HttpClient(at(f"{by}://{host or '127.0.0.1'}:{runner.addresses[0][1]}"), key)
        try:
            return [await _outcome(client, call) for call in calls or (Call("GET", "/x"),)]
        finally:
            await client.close()
            await runner.cleanup()

    return asyncio.run(asyncio.wait_for(go(), 30))


async def _outcome(client: HttpClient, call: Call) -> Any:
    try:
        return await client.body_of(call)
    except (BackendUnavailable, BackendRejected) as error:
        return error


def at(url: str) -> Endpoint:
    return parse_endpoints([url])[0]


def answering(status: int = 200, text: str = "", **headers: str) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(
            status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    return handle


def test_a_call_is_json_with_the_key_and_without_anything_that_an_answer_could_be_packed_in() -> None:
    seen: list[tuple[Any, ...]] = []

    async def handle(request: web.Request) -> web.Response:
        names = ("Authorization", "Content-Type", "Accept-Encoding")
        seen.append((request.method, request.path_qs, await request.text(), *map(request.headers.get, names)))
        return web.Response(text="[1]")

    [body] = asked(handle, Call("POST", "/a/b?mode=keep", {"ids": [1, 2]}), key=ApiKey(SECRET))
    assert body == b"[1]"
    assert seen == [
        ("POST", "/a/b?mode=keep", '{"ids":[1,2]}', f"Bearer {SECRET}", "application/json", "identity")
    ]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_fault_of_the_request_is_no_fault_of_the_server(status: int) -> None:
    [error] = asked(answering(status, '{"error": {"message": "too long", "code": 400}}'))
    assert type(error) is BackendRejected
    assert str(error).endswith(f"answered /x with status {status}: too long")


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 429, 500, 502, 503])
def test_what_a_server_says_about_itself_moves_the_request_to_another(status: int) -> None:
    [error] = asked(answering(status, "busy", Location="http://elsewhere/"))
    assert type(error) is BackendUnavailable
    assert f"/x with status {status}: busy" in str(error)


def test_a_redirect_is_not_followed_so_the_key_goes_nowhere_else() -> None:
    paths: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        paths.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    assert isinstance(asked(handle, key=ApiKey(SECRET))[0], BackendUnavailable)
    assert paths == ["/x"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error": {"message": "in an object", "code": 1}}', "in an object"),
        ('{"error": "a text"}', "a text"),
        ('{"detail": "of a framework"}', "of a framework"),
        ('{"success": false, "message": "of SGLang"}', "of SGLang"),
        ('{"error_message": "of an adapter"}', "of an adapter"),
        ("plain\ttext\n\x1b[31min lines", "plain text [31min lines"),
        ("", "no reason given"),
        ('{"error": 7}', '{"error": 7}'),
        ("[" * 5000, "[" * 500 + "..."),
        ('{"error":' * 2000 + "1" + "}" * 2000, ('{"error":' * 2000)[:500] + "..."),
    ],
)
def test_the_words_of_a_server_are_one_line_of_bounded_length(body: str, words: str) -> None:
    client = HttpClient(at("http://a:1"))
    assert client.words(Reply(500, body.encode())) == words


def test_no_error_and_no_log_line_has_the_key_in_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def echo(request: web.Request) -> web.Response:
        return web.Response(status=401, text=f"bad key {request.headers['Authorization']}")

    async def broken(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(f"HTTP/1.1 {SECRET} x\r\n\r\n".encode())
        request.transport.close()
        return web.Response()

    for handler in (echo, broken):
        [error] = asked(handler, key=ApiKey(SECRET))
        chain = [error, error.__cause__]
        assert SECRET not in " ".join(str(one) for one in chain[:1]) + caplog.text


def test_a_key_that_is_missing_or_wrong_is_told_with_where_it_belongs(tmp_path: Path) -> None:
    words = "the variable SWIFT_RLX_API_KEY has to hold its key, or SWIFT_RLX_API_KEY_FILE to name a file that does"
    assert words in str(asked(answering(401))[0])
    file = tmp_path / "key"
    file.write_text(SECRET)
    for environment, where in (
        ({"SWIFT_RLX_API_KEY": SECRET}, "SWIFT_RLX_API_KEY"),
        ({"SWIFT_RLX_API_KEY_FILE": str(file)}, f"SWIFT_RLX_API_KEY_FILE {file}"),
    ):
        [error] = asked(answering(401, "Unauthorized"), key=read_api_key(environment))
        assert f"Unauthorized; the key in {where} is not the one that it wants: put that one there" in str(
            error
        )
        assert SECRET not in str(error)


def test_an_answer_is_read_up_to_its_limit_and_no_further() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)
            sent += 65536

    [error] = asked(endless, Call("GET", "/x", max_bytes=100_000))
    assert type(error) is BackendUnavailable
    assert "answered /x with more than the 100000 bytes that an answer can have" in str(error)
    assert sent < 50_000_000
    assert asked(answering(text="x" * 1000), Call("GET", "/x", max_bytes=1000)) == [b"x" * 1000]


def test_a_packed_answer_is_not_unpacked() -> None:
    [body] = asked(answering(text="not gzip", Content_Encoding="gzip"))
    assert body == b"not gzip"


async def _close_at_once(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _close_in_the_middle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"half")
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.parametrize("handler", [_close_at_once, _close_in_the_middle])
def test_a_connection_that_breaks_is_no_answer(handler: Handler) -> None:
    [error] = asked(handler)
    assert type(error) is BackendUnavailable
    assert "broke off: " in str(error)


def test_every_call_has_a_connection_of_its_own() -> None:
    """Servers close an idle one, or one on which they failed, without saying so; a call on it would break off."""
    connections = []

    async def handle(request: web.Request) -> web.Response:
        connections.append(request.transport)
        return web.Response()

    asked(handle, *[Call("GET", "/x")] * 3)
    assert len(set(connections)) == 3


def test_nobody_listening_is_a_dead_worker_and_says_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def go() -> Any:
        client = HttpClient(at(f"http://127.0.0.1:{port}"))
        outcome = await _outcome(client, Call("GET", "/x"))
        await client.close()
        return outcome

    error = asyncio.run(go())
    assert type(error) is WorkerAbsent
    assert str(error) == (
        f"http://127.0.0.1:{port} cannot be reached (http_proxy is set and not used: servers are reached directly):"
        " connection refused; is the server up, and is this its address?"
    )


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert asked(answering(text="direct")) == [b"direct"]


def test_a_host_that_is_not_known_is_named() -> None:
    async def go() -> Any:
        client = HttpClient(at("http://no-such-host.invalid:1"))
        outcome = await _outcome(client, Call("GET", "/x"))
        await client.close()
        return outcome

    error = asyncio.run(go())
    assert type(error) is BackendUnavailable
    assert str(error).startswith("http://no-such-host.invalid:1 cannot be reached: ")


def test_a_server_that_does_not_take_the_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_http, "CONNECT_LIMIT_S", 0.05)

    async def go() -> Any:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
            address = deaf.getsockname()
            fill = [socket.socket() for _ in range(8)]
            for one in fill:
                one.setblocking(False)
                one.connect_ex(address)
            client = HttpClient(at(f"http://127.0.0.1:{address[1]}"))
            outcome = await _outcome(client, Call("GET", "/x"))
            await client.close()
            for one in fill:
                one.close()
            return outcome

    error = asyncio.run(asyncio.wait_for(go(), 30))
    assert type(error) is BackendUnavailable
    assert "cannot be reached: no connection within 0.05 s" in str(error)


def test_a_closed_client_says_so() -> None:
    async def go() -> Any:
        client = HttpClient(at("http://127.0.0.1:1"))
        await client.close()
        await client.close()
        return await _outcome(client, Call("GET", "/x"))

    assert str(asyncio.run(go())) == "the connection to http://127.0.0.1:1 is closed"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), (" 0 ", 0.0), ("9" * 400, 300.0), ("-5", None), ("soon", None), ("", None), ("²", None),
     ("Sat, 01 Jan 2000 00:00:00 GMT", 0.0), ("Fri, 01 Jan 2100 00:00:00 GMT", 300.0)],
)  # fmt: skip
def test_how_long_a_server_wants_to_be_left_alone(text: str, seconds: float | None) -> None:
    async def go() -> float | None:
        runner = web.ServerRunner(web.Server(answering(429, Retry_After=text)))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        client = HttpClient(at(f"http://127.0.0.1:{runner.addresses[0][1]}"))
        reply = await client.ask(Call("GET", "/x"))
        await client.close()
        await runner.cleanup()
        return reply.retry_after_s

    assert asyncio.run(go()) == seconds


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate of this machine that signs itself, and a server's use of it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [x509.DNSName("localhost")]
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return folder / "cert.pem", context


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: tuple[Path, ssl.SSLContext]) -> None:
    [error] = asked(answering(text="secret"), tls=certificate[1], host="localhost")
    assert type(error) is BackendUnavailable
    assert "shows a certificate that is not trusted" in str(error)
    assert str(error).endswith("set SSL_CERT_FILE to the certificate of its authority")


def test_a_server_without_tls_is_told_with_the_address_that_it_has() -> None:
    [error] = asked(answering(), scheme="https")
    assert type(error) is BackendUnfit
    assert re.fullmatch(
        r"https://127\.0\.0\.1:(\d+) answers without TLS: it is http://127\.0\.0\.1:\1, without the s",
        str(error),
    )


def test_an_authority_of_ones_own_is_named_by_a_variable(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    assert asked(answering(text="secret"), tls=certificate[1], host="localhost") == [b"secret"]


def test_a_certificate_of_another_host_is_refused(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    [error] = asked(answering(), tls=certificate[1], host="127.0.0.1")
    assert type(error) is BackendUnavailable
    assert "mismatch" in str(error)
