"""TLS, keys and the admin port of a real server, with clients that people have and with some that nobody should be."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from certificates import Authority, Identity
from loopback import ROOT, free_addresses, serving
from raw_http import INFER, MINUTE, connect, until_closed

MODEL = "tiny_mlp"
VALUES = np.ones([1, 64], np.float32)
JSON = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [1.0] * 64}]}).encode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


def key_entry(name: str, secret: str, **more) -> str:
    return "\n".join(["[[key]]", f'name = "{name}"', f'secret = "{secret}"',
                      *(f"{member} = {json.dumps(value)}" for member, value in more.items())]) + "\n"


def write_keys(file: Path, *entries: str) -> Path:
    # As a whole, since the server may be reading.
    fresh = file.with_suffix(".new")
    fresh.write_text("\n".join(entries))
    fresh.chmod(0o600)
    fresh.replace(file)
    return file


def input_of(module, model_input: str = "input"):
    tensor = module.InferInput(model_input, VALUES.shape, "FP32")
    tensor.set_data_from_numpy(VALUES)
    return tensor


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def fetch(address: str, path: str, secret: str | None = None, data: bytes | None = None,
          tls: ssl.SSLContext | None = None) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(f"{'https' if tls else 'http'}://{address}{path}", data=data,
                                     headers={"x-api-key": secret} if secret else {})
    try:
        with urllib.request.urlopen(request, timeout=60, context=tls) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def hang_up(server, log: Path, said: str) -> None:
    """Sends SIGHUP, and waits until the log says so once more."""
    before = log.read_text().count(said)
    server.process.send_signal(signal.SIGHUP)
    limit = time.monotonic() + 30
    while log.read_text().count(said) == before:
        assert time.monotonic() < limit, f"the log does not say '{said}':\n{log.read_text()[-2000:]}"
        time.sleep(0.02)


# -- TLS


@pytest.fixture(scope="module")
def mutual(program, tiny_models, authority, tmp_path_factory):
    """A server with TLS at every port whose clients need certificates; its log and a client's identity."""
    log = tmp_path_factory.mktemp("log") / "tls.log"
    identity, client = authority.issue("server"), authority.issue("client")
    with serving(program, tiny_models, log, "--tls-cert", str(identity.certificate), "--tls-key", str(identity.key),
                 "--tls-client-ca", str(authority.certificate), tls=authority.client_context(client)) as server:
        yield server, log, client


def test_both_protocols_over_tls(mutual, authority):
    server, _, client = mutual
    context = authority.client_context(client)
    with http_client.InferenceServerClient(server.http, ssl=True, ssl_context_factory=lambda: context) as triton:
        assert triton.is_server_ready()
        over_http = triton.infer(MODEL, [input_of(http_client)], timeout=MINUTE).as_numpy("output")
    with grpc_client.InferenceServerClient(
            server.grpc, ssl=True, root_certificates=str(authority.certificate), private_key=str(client.key),
            certificate_chain=str(client.certificate)) as triton:
        assert triton.is_server_ready()
        over_grpc = triton.infer(MODEL, [input_of(grpc_client)], timeout=MINUTE).as_numpy("output")
    np.testing.assert_allclose(over_http, over_grpc, rtol=1e-4)
    status, _, metrics = fetch(server.metrics, "/metrics", tls=context)
    assert status == 200 and b"nv_inference_count" in metrics


def test_clients_without_the_right_certificate_stay_outside(mutual, authority, tmp_path):
    server, _, client = mutual
    other = Authority(tmp_path, "other")
    stranger, expired = other.issue("stranger"), authority.issue("expired", days=-1)
    for context in (authority.client_context(), authority.client_context(stranger), authority.client_context(expired)):
        for address in (server.http, server.metrics):
            with pytest.raises((OSError, urllib.error.URLError)):
                fetch(address, "/v2/health/live", tls=context)
    root = authority.certificate.read_bytes()
    for identity in (None, stranger, expired):
        credentials = grpc.ssl_channel_credentials(root, *((identity.key.read_bytes(), identity.certificate.read_bytes())
                                                           if identity else ()))
        with grpc.secure_channel(server.grpc, credentials) as channel, pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=2)
    # A client that looks at the server's certificate does not take another CA's.
    with pytest.raises((ssl.SSLCertVerificationError, urllib.error.URLError)):
        fetch(server.http, "/v2/health/live", tls=other.client_context(client))


def asked(program, *arguments, key: str | None = None) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "CARILLON_KEY"}
    if key:
        environment["CARILLON_KEY"] = key
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env=environment)


def test_the_programs_own_clients_over_tls(program, mutual, authority, tmp_path):
    server, _, client = mutual
    believes = ("--ca", authority.certificate)
    shows = ("--cert", client.certificate, "--cert-key", client.key)
    some = ("--model", MODEL, "--rate", 40, "--process", "uniform", "--duration", 0.5, "--json")
    for url in (f"https://{server.http}", f"grpcs://{server.grpc}"):
        told = json.loads(asked(program, "load", url, *some, *believes, *shows).stdout)
        assert told["on_time"] == told["sent"] > 0, told
        for options, words in ((believes, "--cert and --cert-key name one"), (shows, "is not trusted"),
                               ((*believes, *shows[:2]), "go together")):
            done = asked(program, "load", url, *some, *options)
            assert done.returncode in (1, 2) and words in done.stderr, done
    listed = asked(program, "explain", f"https://{server.http}", *believes, *shows)
    assert listed.returncode == 0 and MODEL in listed.stdout, listed.stderr
    refused = asked(program, "explain", f"https://{server.http}", *believes)
    assert refused.returncode == 1 and "--cert and --cert-key name one" in refused.stderr
    watched = asked(program, "plan", "--from", f"https://{server.metrics}/metrics", "--from-seconds", 0.1,
                    "--coefficients", ROOT / "profiles/igniter/workloads.json", "--hardware",
                    ROOT / "profiles/igniter/v100.json", *believes, *shows)
    assert "watching https://" in watched.stderr, watched.stderr


def test_bad_bytes_at_tls_ports_end_in_words_or_at_once(mutual, authority):
    server, _, client = mutual
    with connect(server.http, 30) as plain:
        plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
        said = until_closed(plain)
        assert said.startswith(b"HTTP/1.1 400 ") and b"https://" in said
    for address in (server.http, server.grpc, server.metrics):
        for noise in (b"\x00" * 100, b"\x16\x03\x01\xff\xff" + b"\xff" * 70000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with connect(address, 30) as hostile, contextlib.suppress(ConnectionError):
                hostile.sendall(noise)
                until_closed(hostile)
        with connect(address) as short:  # a hello that is cut off
            short.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    with socket.create_connection(tuple(server.http.split(":"))) as raw:
        context = authority.client_context(client)
        with context.wrap_socket(raw, server_hostname="localhost") as long_header:
            with contextlib.suppress(OSError):
                long_header.sendall(b"GET / HTTP/1.1\r\nHost: t\r\nX: " + b"x" * 200_000 + b"\r\n\r\n")
            long_header.settimeout(30)
            assert long_header.recv(100).startswith(b"HTTP/1.1 431 ")
    assert fetch(server.http, "/v2/health/ready", tls=authority.client_context(client))[0] == 200


def test_old_versions_are_refused(mutual, authority):
    server, _, client = mutual
    for address in (server.http, server.grpc):
        context = authority.client_context(client)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as raw, pytest.raises(OSError):
            context.wrap_socket(raw, server_hostname="localhost")


def test_stalled_handshakes_end_and_hold_nobody_up(mutual, authority):
    server, _, client = mutual
    context = authority.client_context(client)
    silent = []
    began = time.monotonic()
    for address in (server.http, server.grpc):
        for _ in range(100):
            silent.append(connect(address))
            silent[-1].sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert fetch(server.http, "/v2/health/ready", tls=context)[0] == 200
    for connection in silent:
        connection.settimeout(60)
        until_closed(connection)
        connection.close()
    assert time.monotonic() - began < 60


def test_certificates_are_read_again_and_no_request_is_lost(program, tiny_models, tmp_path):
    authority = Authority(tmp_path)
    first, second, third = (authority.issue(name) for name in ("first", "second", "third"))
    used = Identity(tmp_path / "used.pem", tmp_path / "used.key")

    def install(identity: Identity) -> None:
        shutil.copy(identity.certificate, used.certificate)
        shutil.copy(identity.key, used.key)

    def name_at(address: str) -> str:
        pem = ssl.get_server_certificate(tuple(address.split(":")))
        said = subprocess.run(["openssl", "x509", "-noout", "-subject"], input=pem, check=True, capture_output=True,
                              text=True, timeout=60).stdout
        return said.strip().split("=")[-1].strip()

    install(first)
    log = tmp_path / "log"
    context = authority.client_context()
    failures: list[str] = []
    answered = [0, 0]
    ended = threading.Event()

    def ask(kind: int, server) -> None:
        """Old connections and new ones by turns."""
        while not ended.is_set():
            try:
                if kind == 0:
                    client = http_client.InferenceServerClient(server.http, ssl=True,
                                                               ssl_context_factory=lambda: context)
                else:
                    client = grpc_client.InferenceServerClient(server.grpc, ssl=True,
                                                               root_certificates=str(authority.certificate))
                with client:
                    for _ in range(20):
                        client.infer(MODEL, [input_of(http_client if kind == 0 else grpc_client)], timeout=MINUTE)
                        answered[kind] += 1
            except Exception as error:  # noqa: BLE001 - any is a lost request
                failures.append(f"{kind}: {error!r}")

    with serving(program, tiny_models, log, "--tls-cert", str(used.certificate), "--tls-key", str(used.key),
                 tls=context) as server:
        threads = [threading.Thread(target=ask, args=(kind, server)) for kind in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            for identity, name in ((second, "second"), (third, "third"), (first, "first")):
                install(identity)
                hang_up(server, log, "certificates that were read again")
                assert name_at(server.http) == name_at(server.grpc) == name_at(server.metrics) == name
            used.key.write_text("no key")
            hang_up(server, log, "certificates stay as they were")
            assert f"--tls-key {used.key}" in log.read_text()
            assert name_at(server.http) == name_at(server.grpc) == "first"
        finally:
            time.sleep(0.5)
            ended.set()
            for thread in threads:
                thread.join()
    assert not failures, failures[:5]
    assert min(answered) > 20, answered


# -- keys

SECRETS = {name: f"{name}-secret-0123456789" for name in ("team", "half", "limited", "boss", "scraper", "small")}


def all_keys(**changed: str) -> list[str]:
    secrets = SECRETS | changed
    return [key_entry("team", secrets["team"], models=["tiny_m*"]),
            key_entry("half", secrets["half"], roles=["admin", "infer"], models=["tiny_m*"]),
            key_entry("limited", secrets["limited"], rate=1, burst=3),
            key_entry("boss", secrets["boss"], roles=["admin", "infer"]),
            key_entry("scraper", secrets["scraper"], roles=["metrics"]),
            key_entry("small", secrets["small"], bytes="1 KiB")]


@pytest.fixture(scope="module")
def keyed(program, tiny_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    keys = write_keys(folder / "keys.toml", *all_keys())
    with serving(program, tiny_models, folder / "log", "--keys", str(keys), "--model-control-mode", "explicit",
                 "--load-model", "*") as server:
        yield server, folder / "log", keys
        said = (folder / "log").read_text()
    for secret in SECRETS.values():
        assert secret not in said


def code_of(call) -> grpc.StatusCode:
    with pytest.raises(InferenceServerException) as refused:
        call()
    return refused.value.status()


def test_health_is_open_and_the_rest_is_not(keyed):
    server, _, _ = keyed
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert fetch(server.http, path)[0] == 200
    for path in ("/v2", f"/v2/models/{MODEL}", f"/v2/models/{MODEL}/ready", f"/v2/models/{MODEL}/config",
                 "/v2/models/stats", "/v2/logging", "/v2/systemsharedmemory/status", "/nowhere"):
        status, headers, body = fetch(server.http, path)
        assert status == 401, (path, body)
        assert headers["WWW-Authenticate"].startswith("Bearer ")
        assert fetch(server.http, path, "an-unknown-secret-of-length")[0] == 401
    assert fetch(server.http, INFER, data=JSON)[0] == 401
    assert fetch(server.metrics, "/metrics")[0] == 401
    assert fetch(server.metrics, "/metrics", SECRETS["team"])[0] == 403
    assert fetch(server.metrics, "/metrics", SECRETS["scraper"])[0] == 200
    with grpc_client.InferenceServerClient(server.grpc) as client:
        assert client.is_server_live() and client.is_server_ready()
        for call in (client.get_server_metadata, client.get_model_repository_index, client.get_log_settings,
                     lambda: client.get_model_metadata(MODEL), lambda: client.is_model_ready(MODEL),
                     lambda: client.infer(MODEL, [input_of(grpc_client)]),
                     lambda: client.infer(MODEL, [input_of(grpc_client)], headers=bearer("wrong"))):
            assert code_of(call) == "StatusCode.UNAUTHENTICATED"


def test_a_key_opens_both_protocols(keyed):
    server, _, _ = keyed
    for headers in (bearer(SECRETS["team"]), {"x-api-key": SECRETS["team"]}):
        with http_client.InferenceServerClient(server.http) as client:
            client.infer(MODEL, [input_of(http_client)], headers=dict(headers), timeout=MINUTE)  # it adds to them
        with grpc_client.InferenceServerClient(server.grpc) as client:
            client.infer(MODEL, [input_of(grpc_client)], headers=headers, timeout=MINUTE)


def test_a_body_is_not_read_before_the_key(keyed):
    server, _, _ = keyed
    with connect(server.http, 30) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n".encode())
        assert until_closed(connection).startswith(b"HTTP/1.1 401 ")
    with connect(server.http, 30) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n".encode())
        assert until_closed(connection).startswith(b"HTTP/1.1 401 ")


def test_models_of_others_are_as_if_they_were_not(keyed):
    server, _, _ = keyed
    key = bearer(SECRETS["team"])
    with http_client.InferenceServerClient(server.http) as client:
        assert [model["name"] for model in client.get_model_repository_index(headers=key)] == [MODEL]
        assert {model["name"] for model in client.get_inference_statistics(headers=key)["model_stats"]} == {MODEL}
        assert len(client.get_model_repository_index(headers=bearer(SECRETS["boss"]))) > 1
    texts = set()
    for name in ("tiny_cnn", "no_such_model"):
        for what in ("", "/ready", "/config", "/stats"):
            status, _, body = fetch(server.http, f"/v2/models/{name}{what}", SECRETS["team"])
            assert status == 403
            texts.add(body.replace(name.encode(), b"X"))
        status, _, body = fetch(server.http, f"/v2/models/{name}/infer", SECRETS["team"], JSON)
        assert status == 403
        texts.add(body.replace(name.encode(), b"X"))
    assert len(texts) == 1, texts
    assert fetch(server.http, "/v2/models/tiny_missing", SECRETS["team"])[0] == 404  # of a name that it may use
    with grpc_client.InferenceServerClient(server.grpc) as client:
        index = client.get_model_repository_index(headers=key).models
        assert [model.name for model in index] == [MODEL]
        for name in ("tiny_cnn", "no_such_model"):
            for call in (lambda: client.infer(name, [input_of(grpc_client)], headers=key),
                         lambda: client.get_model_metadata(name, headers=key),
                         lambda: client.is_model_ready(name, headers=key),
                         lambda: client.get_model_config(name, headers=key),
                         lambda: client.get_inference_statistics(name, headers=key)):
                assert code_of(call) == "StatusCode.PERMISSION_DENIED"


def test_orders_need_the_role(keyed):
    server, _, _ = keyed
    orders = (("/v2/repository/models/tiny_cnn/unload", b"{}"), ("/v2/repository/models/tiny_cnn/load", b"{}"),
              ("/v2/logging", b'{"log_info":true}'), ("/v2/trace/setting", b"{}"),
              ("/v2/systemsharedmemory/region/r/register", b'{"key":"/none","byte_size":1}'),
              ("/v2/systemsharedmemory/unregister", b""), ("/v2/cudasharedmemory/region/r/register", b"{}"),
              ("/v2/cudasharedmemory/unregister", b""), ("/v2/cudasharedmemory/status", None), ("/v2/logging", None), ("/v2/systemsharedmemory/status", None))
    for path, body in orders:
        assert fetch(server.http, path, SECRETS["team"], body)[0] == 403, path
    for path, body in orders:
        assert fetch(server.http, path, SECRETS["boss"], body)[0] != 403, path
    with grpc_client.InferenceServerClient(server.grpc) as client:
        key = bearer(SECRETS["team"])
        for call in (lambda: client.load_model(MODEL, headers=key), lambda: client.unload_model(MODEL, headers=key),
                     lambda: client.update_log_settings({"log_info": True}, headers=key),
                     lambda: client.update_trace_settings(headers=key),
                     lambda: client.register_system_shared_memory("r", "/none", 1, headers=key),
                     lambda: client.get_system_shared_memory_status(headers=key),
                     lambda: client.register_cuda_shared_memory("r", b"", 0, 1, headers=key),
                     lambda: client.unregister_cuda_shared_memory(headers=key),
                     lambda: client.get_cuda_shared_memory_status(headers=key)):
            assert code_of(call) == "StatusCode.PERMISSION_DENIED"
        client.load_model(MODEL, headers=bearer(SECRETS["boss"]))
        client.update_log_settings({"log_info": True}, headers=bearer(SECRETS["boss"]))


def test_the_programs_own_clients_send_keys(program, keyed, tmp_path):
    server, _, _ = keyed
    (tmp_path / "secret").write_text(SECRETS["team"] + "\n")
    some = ("--model", MODEL, "--rate", 40, "--process", "uniform", "--duration", 0.5)
    for url in (f"http://{server.http}", f"grpc://{server.grpc}"):
        for options, key in ((("--key", SECRETS["team"]), None), (("--key", f"@{tmp_path / 'secret'}"), None),
                             ((), SECRETS["team"]), ((), f"@{tmp_path / 'secret'}")):
            done = asked(program, "load", url, *some, "--json", *options, key=key)
            assert done.returncode == 0 and json.loads(done.stdout)["on_time"] > 0, done.stderr
        for options, words in (((), "sends a key"), (("--key", "nobody-knows-this-one"), "is refused"),
                               (("--key", SECRETS["scraper"]), "may not do this")):
            done = asked(program, "load", url, *some, *options)
            assert done.returncode == 1 and words in done.stderr and "nobody-knows" not in done.stderr, done.stderr
    assert asked(program, "explain", f"http://{server.http}", key=SECRETS["team"]).returncode == 0
    assert "sends a key" in asked(program, "explain", f"http://{server.http}").stderr


def test_a_load_of_which_all_fails_ends_with_1(program, keyed):
    server, _, keys = keyed
    write_keys(keys, *all_keys(), key_entry("looker", "looker-secret-0123456789", roles=["admin"]))
    hang_up(server, keys.with_name("log"), "the keys were read again")
    for url in (f"http://{server.http}", f"grpc://{server.grpc}"):
        some = ("load", url, "--model", MODEL, "--rate", 40, "--process", "uniform", "--duration", 0.5, "--key",
                "looker-secret-0123456789")
        done = asked(program, *some)
        assert done.returncode == 1 and re.search(r"all \d+ requests failed", done.stderr), done
        assert "may not do this" in done.stdout
        done = asked(program, *some, "--allow-failures")
        assert done.returncode == 0 and re.search(r"all \d+ requests failed", done.stderr), done


def test_priority_one_is_real_time_with_a_key_for_that(program, keyed):
    """A key of 'carillon key new --real-time'; with any other the same request is an ordinary one."""
    server, _, keys = keyed
    made = [subprocess.run([str(program), "key", "new", name, *options], check=True, capture_output=True, text=True, timeout=60)
            for name, options in (("urgent", ["--real-time"]), ("usual", []))]
    write_keys(keys, *all_keys(), *(each.stdout for each in made))
    hang_up(server, keys.with_name("log"), "the keys were read again")
    for done, of_class in zip(made, ("real_time", "normal")):
        secret = re.search(r"nowhere: (\S+)", done.stderr).group(1)
        before = {entry["number"] for entry in kept_of(server, secret)}
        for module, address in ((http_client, server.http), (grpc_client, server.grpc)):
            with module.InferenceServerClient(address) as client:
                client.infer(MODEL, [input_of(module)], priority=1, timeout=MINUTE, headers=bearer(secret))
        classes = [entry["class"] for entry in kept_of(server, secret) if entry["number"] not in before]
        assert classes == [of_class] * 2


def kept_of(server, secret: str) -> list[dict]:
    status, _, body = fetch(server.http, "/v2/carillon/requests", secret)
    assert status == 200, body
    return [json.loads(fetch(server.http, f"/v2/carillon/requests/{entry['number']}", secret)[2])
            for entry in json.loads(body)["requests"]]


def test_a_region_is_for_the_key_that_registered_it(keyed):
    server, _, keys = keyed
    write_keys(keys, *all_keys(), key_entry("camera", "camera-secret-0123456789", regions=["cam-*"]))
    hang_up(server, keys.with_name("log"), "the keys were read again")
    name = f"/carillon_{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name[1:], name, 4096, create_only=True)
    shm.set_shared_memory_region(handle, [VALUES])
    camera = "camera-secret-0123456789"
    try:
        for module, address in ((http_client, server.http), (grpc_client, server.grpc)):
            with module.InferenceServerClient(address) as client:
                own = bearer(SECRETS["half"])
                for region in ("mine", "cam-1"):
                    client.register_system_shared_memory(region, name, 4096, headers=own)

                def infer(region, secret, client=client, module=module):
                    tensor = module.InferInput("input", VALUES.shape, "FP32")
                    tensor.set_shared_memory(region, VALUES.nbytes)
                    return client.infer(MODEL, [tensor], timeout=MINUTE, headers=bearer(secret))

                for region, secret in (("mine", SECRETS["half"]), ("cam-1", SECRETS["half"]), ("cam-1", camera),
                                       ("mine", SECRETS["boss"])):
                    assert infer(region, secret).as_numpy("output") is not None
                for region, secret in (("mine", camera), ("mine", SECRETS["team"]), ("cam-1", SECRETS["team"]),
                                       ("cam-9", camera)):
                    with pytest.raises(InferenceServerException) as refused:
                        infer(region, secret)
                    assert f"no shared memory region '{region}' is registered that key" in refused.value.message()
                client.unregister_system_shared_memory(headers=own)
    finally:
        shm.destroy_shared_memory_region(handle)


def test_an_order_brings_no_models_of_others(keyed):
    """An ensemble would run what the key may not use."""
    server, _, _ = keyed
    def of(model):
        return json.dumps({"platform": "ensemble", "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1, 64]}],
                           "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1, 10]}], "ensemble_scheduling": {
                               "step": [{"model_name": model, "model_version": -1, "input_map": {"input": "x"},
                                         "output_map": {"output": "y"}}]}})
    path = f"/v2/repository/models/{MODEL}/load"
    with grpc_client.InferenceServerClient(server.grpc) as client:
        for model, stopped in (("tiny_cnn", True), ("tiny_mlp_too", False)):
            body = json.dumps({"parameters": {"config": of(model)}}).encode()
            assert (fetch(server.http, path, SECRETS["half"], body)[0] == 403) is stopped
            try:
                client.load_model(MODEL, config=of(model), headers=bearer(SECRETS["half"]))
                assert not stopped
            except InferenceServerException as error:
                assert (error.status() == "StatusCode.PERMISSION_DENIED") is stopped
        client.load_model(MODEL, headers=bearer(SECRETS["boss"]))


def test_rates_and_when_to_come_back(keyed):
    server, _, _ = keyed
    statuses = []
    for _ in range(8):
        status, headers, _ = fetch(server.http, f"/v2/models/{MODEL}/ready", SECRETS["limited"])
        statuses.append(status)
        if status == 429:
            assert int(headers["Retry-After"]) >= 1
    assert statuses[:3] == [200] * 3 and statuses.count(429) >= 4, statuses
    with grpc_client.InferenceServerClient(server.grpc) as client:  # of the same rate
        assert code_of(lambda: client.infer(MODEL, [input_of(grpc_client)], headers=bearer(SECRETS["limited"]))) \
            == "StatusCode.RESOURCE_EXHAUSTED"
    # A connection that asked too often stays: its client needs no other handshake.
    with connect(server.http) as connection:
        for _ in range(3):
            connection.sendall(f"GET /v2 HTTP/1.1\r\nHost: t\r\nx-api-key: {SECRETS['limited']}\r\n\r\n".encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 ")
    time.sleep(1.2)
    assert fetch(server.http, "/v2", SECRETS["limited"])[0] == 200


def test_bytes_in_flight_of_a_key(keyed):
    server, _, _ = keyed
    status, _, body = fetch(server.http, INFER, SECRETS["small"], JSON + b" " * 2000)
    assert status == 413 and b"1024 bytes" in body
    head = f"POST {INFER} HTTP/1.1\r\nHost: t\r\nx-api-key: {SECRETS['small']}\r\nContent-Length: 1000\r\n\r\n".encode()
    with connect(server.http) as holding:
        holding.sendall(head + b" ")
        limit = time.monotonic() + 30
        while fetch(server.http, INFER, SECRETS["small"], JSON)[0] != 429:
            assert time.monotonic() < limit
        assert fetch(server.http, INFER, SECRETS["team"], JSON)[0] == 200
        with grpc_client.InferenceServerClient(server.grpc) as client:
            assert code_of(lambda: client.infer(MODEL, [input_of(grpc_client)], headers=bearer(SECRETS["small"]))) \
                == "StatusCode.RESOURCE_EXHAUSTED"
    limit = time.monotonic() + 30
    while fetch(server.http, INFER, SECRETS["small"], JSON)[0] != 200:
        assert time.monotonic() < limit


def test_streams_have_keys(keyed):
    server, _, _ = keyed

    def first_of(key: dict[str, str], model: str):
        answers = []
        came = threading.Event()

        def on_answer(result, error):
            answers.append((result, error))
            came.set()

        with grpc_client.InferenceServerClient(server.grpc) as client:
            client.start_stream(on_answer, headers=key)
            with contextlib.suppress(InferenceServerException):  # the stream has been refused by now
                client.async_stream_infer(model, [input_of(grpc_client)])
            assert came.wait(60)
            client.stop_stream()
        return answers[0]

    assert first_of(bearer(SECRETS["team"]), MODEL)[1] is None
    assert "may not use" in str(first_of(bearer(SECRETS["team"]), "tiny_cnn")[1])
    assert "does not know the key" in str(first_of(bearer("wrong"), MODEL)[1])
    assert "role" in str(first_of(bearer(SECRETS["scraper"]), MODEL)[1])


def test_keys_are_read_again(keyed):
    server, log, keys = keyed
    other = "a-new-secret-0123456789"
    try:
        write_keys(keys, *all_keys(team=other))
        hang_up(server, log, "keys were read again")
        assert fetch(server.http, "/v2", SECRETS["team"])[0] == 401
        assert fetch(server.http, "/v2", other)[0] == 200
        write_keys(keys, "[[key]]\nname = 3\n")
        hang_up(server, log, "keys stay as they were")
        assert fetch(server.http, "/v2", other)[0] == 200
    finally:
        write_keys(keys, *all_keys())
        hang_up(server, log, "keys were read again")
    assert fetch(server.http, "/v2", SECRETS["team"])[0] == 200


# -- the admin port, and what the command line says


def test_the_admin_port_alone_takes_orders(program, tiny_models, tmp_path):
    admin = free_addresses(1)[0]
    with serving(program, tiny_models, tmp_path / "log", "--admin-port", admin.split(":")[1], "--model-control-mode",
                 "explicit", "--load-model", "*") as server:
        with http_client.InferenceServerClient(server.http) as client, \
                http_client.InferenceServerClient(admin) as boss:
            with pytest.raises(InferenceServerException, match=re.escape(f"admin port, {admin}")):
                client.unload_model("tiny_cnn")
            assert client.is_model_ready("tiny_cnn")
            boss.unload_model("tiny_cnn")
            assert not client.is_model_ready("tiny_cnn")
            boss.load_model("tiny_cnn")
            assert boss.get_log_settings()["log_error"] is True
            client.infer(MODEL, [input_of(http_client)], timeout=MINUTE)
        with grpc_client.InferenceServerClient(server.grpc) as client:
            for call in (lambda: client.unload_model("tiny_cnn"), client.get_log_settings,
                         client.get_system_shared_memory_status, client.get_cuda_shared_memory_status,
                         lambda: client.register_cuda_shared_memory("r", b"", 0, 1)):
                with pytest.raises(InferenceServerException, match=re.escape(f"admin port, {admin}")) as refused:
                    call()
                assert refused.value.status() == "StatusCode.PERMISSION_DENIED"


def refused(program: Path, *options: str) -> str:
    """What a server says that ends at the latest when its one model, a torn file, is to be loaded."""
    with tempfile.TemporaryDirectory() as folder:
        torn = Path(folder) / "torn.onnx"
        torn.write_bytes(b"\x08")
        done = subprocess.run([str(program), "serve", "--model", str(torn), "--page-cache", "64 MiB", *options],
                              capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    return done.stderr


def test_what_is_wrong_is_told_before_models_load(program, authority, tmp_path):
    server, client = authority.issue("told"), authority.issue("other")
    local = ("--http", "127.0.0.1:0", "--grpc", "", "--metrics", "")
    pair = ("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
    keys = write_keys(tmp_path / "keys.toml", *all_keys())
    assert "go together" in refused(program, *local, *pair[:2])
    assert "--tls-client-ca needs" in refused(program, *local, "--tls-client-ca", str(authority.certificate))
    assert "--tls-cert /none: No such file" in refused(program, *local, "--tls-cert", "/none", "--tls-key", "/none")
    assert "not that of the certificate" in refused(program, *local, *pair[:2], "--tls-key", str(client.key))
    assert "--keys /none: No such file" in refused(program, *local, "--keys", "/none")
    assert "--require-key: HTTP :0 can be reached" in refused(program, "--http", ":0", *local[2:], "--require-key")
    assert "--require-key" not in refused(program, *local, "--require-key")
    assert "--require-key:" not in refused(program, "--http", ":0", *local[2:], "--require-key", "--keys", str(keys))
    warning = refused(program, "--http", ":0", "--grpc", "127.0.0.1:0", "--metrics", ":0")
    assert "open to the network without TLS and without keys: HTTP :0, metrics :0;" in warning
    assert "open to the network" not in refused(program, *local)
    assert "open to the network" not in refused(program, "--http", ":0", *local[2:], *pair, "--keys", str(keys))
    server.key.chmod(0o644)
    assert f"--tls-key {server.key}: everybody on this machine" in refused(program, *local, *pair)


def test_keys_are_made_by_a_command(program, tmp_path):
    done = subprocess.run([str(program), "key", "new", "team-a"], check=True, capture_output=True, text=True, timeout=60)
    secret = re.search(r"nowhere: (\S+)", done.stderr).group(1)
    assert secret not in done.stdout and 'name = "team-a"' in done.stdout
    made = json.loads(subprocess.run([str(program), "key", "new", "b", "--json"], check=True, capture_output=True,
                                     text=True, timeout=60).stdout)
    assert made["sha256"] == hashlib.sha256(made["secret"].encode()).hexdigest()
    assert hashlib.sha256(secret.encode()).hexdigest() in done.stdout
    assert subprocess.run([str(program), "key", "new", "a b"], capture_output=True, timeout=60).returncode == 2
