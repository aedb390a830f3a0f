"""Settings that cannot work are told in one sentence."""

import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ws_adapter.access.rate_limit import FRAMES_BURST_S, LINES, LINES_PER_S
from ws_adapter.options import AdapterOptions
from ws_adapter.process import descriptors
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.wire.limits import Limits
from ws_adapter.web.message import SMALL_BURST, SMALL_FRAGMENT, SMALL_MESSAGE, SMALL_PER_S

WORKERS = ("127.0.0.1:50051",)
KEYS: dict[str, Any] = {"auth": "keys", "keys": Path("keys")}
WORKER_CERT = {"worker_cert": Path("c"), "worker_cert_key": Path("k")}
DISPATCHER_CERT = {"dispatcher_cert": Path("c"), "dispatcher_cert_key": Path("k")}
HALF_CERT = {"dispatcher": "rediss://h", "dispatcher_cert": Path("c")}

SHARED: dict[str, Any] = {"dispatcher": "redis://127.0.0.1", "client_secret_key": b"0123456789abcdef"}
PEER_FILES: dict[str, Any] = {"peer_ca": Path("ca"), "peer_cert": Path("cert"), "peer_cert_key": Path("key")}
PEER = {**SHARED, "workers": (), "peer_listen": "127.0.0.1:8010"}


def test_defaults_keep_keys_out_of_urls_and_give_chats_longer_messages() -> None:
    options = AdapterOptions(workers=WORKERS)

    assert (options.auth_query, options.allowed_origins) == (False, None)
    assert options.message_bytes_of(Kind.TRANSCRIPTION) == 16_777_216
    assert options.message_bytes_of(Kind.CHAT) == 2 * 16_777_216


@pytest.mark.parametrize(("kind", "limit_s"), [(Kind.AUDIO_DUPLEX, 600), (Kind.OMNI_DUPLEX, 300)])
def test_default_limits_are_those_of_the_protocol(kind: Kind, limit_s: float) -> None:
    limits = AdapterOptions(workers=WORKERS).limits(kind)

    assert limits == Limits(
        session_limit_s=limit_s,
        pause_timeout_s=60,
        init_timeout_s=20,
        duplex_idle_s=60,
        unit_flush_s=1.25,
        max_lag_s=3,
        max_waiting_units=32,
        max_waiting_bytes=8_388_608,
        silence_tail_units=10,
        max_append_s=60,
    )


def test_page_on_being_exposed_names_the_limits_that_hold() -> None:
    text = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    section = text.split("## Exposed to the internet")[1].split("\n## ")[0]
    told = re.findall(r"`--([a-z-]+)` ([0-9.]+)", section)

    assert len(told) == 6
    for name, value in told:
        assert float(value) == AdapterOptions.__dataclass_fields__[name.replace("-", "_")].default, name
    assert f"{SMALL_BURST} small frames at once and {SMALL_PER_S:g} a second" in section
    assert f"below {SMALL_FRAGMENT // 1024} KiB, messages below {SMALL_MESSAGE // 1024} KiB" in section
    assert f"{LINES} lines of the log at once and {LINES_PER_S:g} a second" in section
    assert FRAMES_BURST_S == 10


def test_listening_beyond_loopback_needs_permission_and_its_administration_keys() -> None:
    for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        AdapterOptions(workers=WORKERS, host=host)
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        tls: dict[str, Any] = {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_host": host}
        for place in ({"host": host}, tls):
            with pytest.raises(ConfigurationError, match=re.escape(f"to listen on {host} without a key")):
                AdapterOptions(workers=WORKERS, **place)
            AdapterOptions(workers=WORKERS, **place, allow_anonymous=True)
            AdapterOptions(workers=WORKERS, **place, auth="keys", keys=Path("keys"))
    for given in ({}, {"allow_anonymous": True}):
        with pytest.raises(ConfigurationError, match="Refusing to serve the administration"):
            AdapterOptions(workers=WORKERS, admin_host="0.0.0.0", **given)
    AdapterOptions(workers=WORKERS, admin_host="0.0.0.0", auth="keys", keys=Path("keys"))


def test_more_waiting_clients_than_open_files_are_refused() -> None:
    command = [sys.executable, "-m", "antiphon_command", "adapter", "--port", "0", "--worker", WORKERS[0]]
    # The limit of the process that is started, not of this one.
    limited = ["sh", "-c", 'ulimit -n 1000 && exec "$@"', "sh", *command]

    told = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)

    assert told.returncode == 2
    assert (
        "1000 waiting clients and other uses need 1256 open files; this process may have 1000." in told.stderr
    )


def test_adapter_takes_all_open_files_that_it_may_have() -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most - 1), most))
        descriptors.reserve(1)

        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"workers": ()}, "No worker is named"),
        ({"workers": ("",)}, "No worker is named"),
        ({"workers": ("localhost",)}, "Cannot reach a worker at 'localhost': give host:port or unix:path."),
        ({"workers": ("localhost:grpc",)}, "Cannot reach a worker at 'localhost:grpc'"),
        ({"workers": ("127.0.0.1:0",)}, "Cannot reach a worker at '127.0.0.1:0'"),
        ({"workers": (*WORKERS, "unix:")}, "Cannot reach a worker at 'unix:'"),
        ({"workers": ("http://localhost:50051",)}, "Cannot reach a worker at 'http://localhost:50051'"),
        ({"port": 65_536}, "port must be 0 to 65535, not 65536."),
        ({"queue_capacity": 0}, "queue_capacity must be at least 1, not 0."),
        ({"init_timeout_s": 30}, "init_timeout_s must be below 30, not 30:"),
        ({"init_timeout_s": 0}, "init_timeout_s must be above 0, not 0."),
        ({"unit_flush_s": float("nan")}, "unit_flush_s must be above 0, not nan."),
        ({"drain_timeout_s": -1}, "drain_timeout_s must be 0 or more, not -1."),
        ({"session_limit_audio_s": float("inf")}, "session_limit_audio_s must be 0 or more, not inf."),
        ({"session_limit_video_s": -1}, "session_limit_video_s must be 0 or more, not -1."),
        ({"pause_timeout_s": 0}, "pause_timeout_s must be 1 to 300, not 0:"),
        ({"pause_timeout_s": 301}, "pause_timeout_s must be 1 to 300, not 301:"),
        ({"pause_timeout_s": float("nan")}, "pause_timeout_s must be 1 to 300, not nan:"),
        ({"tls_port": -1}, "tls_port must be 0 to 65535, not -1."),
        ({"default_realtime_mode": "speech"}, "must be video or audio or chat or transcription, not speech."),
        ({"client_secret_key": b"k" * 15}, "has 15 bytes: a key of client secrets must have at least 16."),
        ({"auth": "on"}, "auth must be off or keys or redis, not on."),
        ({"auth": "keys"}, "Pass --auth keys and --keys FILE, or neither."),
        ({"keys": Path("keys")}, "Pass --auth keys and --keys FILE, or neither."),
        ({"auth_query": True}, "auth_query means nothing without keys."),
        ({**KEYS, "allow_anonymous": True}, "Leave out --allow-anonymous or --auth keys"),
        ({"tls_cert": Path("c")}, "Pass --tls-cert and --tls-key."),
        ({"tls_key": Path("k")}, "Pass --tls-cert and --tls-key."),
        ({"tls_host": "127.0.0.1"}, "tls_host means nothing without TLS."),
        ({"worker_cert": Path("c")}, "Pass --worker-cert and --worker-cert-key."),
        ({"worker_cert_key": Path("k")}, "Pass --worker-cert and --worker-cert-key."),
        (WORKER_CERT, "worker_cert means nothing without TLS to the workers. Pass --worker-ca too."),
        ({"worker_name": "workers"}, "worker_name means nothing without TLS to the workers."),
        (DISPATCHER_CERT, "dispatcher_cert means nothing without --dispatcher URL."),
        ({"workers": (), **HALF_CERT}, "Pass --dispatcher-cert and --dispatcher-cert-key."),
        ({"allowed_origins": ()}, "allowed_origins names no origin."),
        ({"allowed_origins": ("example.org",)}, "allowed_origins must be like https://example.org"),
        ({"allowed_origins": ("https://example.org/",)}, "without a path, not https://example.org/."),
        ({"trusted_proxies": ()}, "trusted_proxies names no address."),
        ({"trusted_proxies": ("name-your-proxies",)}, "trusted_proxies must be like 10.0.0.1"),
        ({"trusted_proxies": ("10.0.0.1/8",)}, "trusted_proxies must be like 10.0.0.1 or 10.0.0.0/28"),
        ({"connections_per_address": -1}, "connections_per_address must be 0 or more, not -1."),
        ({"peer_listen": "127.0.0.1:8010"}, "peer_listen means nothing without --dispatcher URL."),
        (PEER | {"client_secret_key": None}, "Adapters that forward connections sign with a shared key."),
        (PEER | {"peer_listen": None, "peer_advertise": "h:1"}, "mean nothing without --peer-listen."),
        (PEER | {"peer_listen": None, **PEER_FILES}, "mean nothing without --peer-listen."),
        (
            PEER | {"peer_ca": Path("ca")},
            "TLS between adapters needs an authority, a certificate and its key.",
        ),
        (PEER | {"peer_listen": "8010"}, "peer_listen must be host:port or unix:path, not '8010'."),
        (PEER | {"peer_listen": "localhost:99999"}, "peer_listen must be host:port or unix:path"),
        (PEER | {"peer_listen": "unix:"}, "peer_listen must be host:port or unix:path"),
        (
            PEER | {"peer_listen": "0.0.0.0:8010"},
            "forwarded connections on 0.0.0.0 without TLS",
        ),
        (PEER | {"peer_advertise": "h"}, "peer_advertise must be host:port or unix:path, not 'h'."),
    ],
)
def test_bad_values(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        AdapterOptions(**{"workers": WORKERS, **change})


READ_AGAIN: dict[str, dict[str, Any]] = {
    "keys": KEYS,
    "client secrets": {"client_secret_key_file": Path("k")},
    "certificate": {"tls_cert": Path("c"), "tls_key": Path("k")},
    "authority of workers": {"worker_ca": Path("ca")},
    "workers": {"workers": (), "workers_file": Path("w")},
    "authority of Redis": {"workers": (), "dispatcher": "rediss://h", "dispatcher_ca": Path("ca")},
    "peers": {**PEER, **PEER_FILES},
    "usage": {"usage_log": Path("u")},
}


@pytest.mark.parametrize("given", READ_AGAIN.values(), ids=READ_AGAIN)
def test_file_that_is_read_again_keeps_sighup_from_ending_the_adapter(given: dict[str, Any]) -> None:
    assert AdapterOptions(**{"workers": WORKERS, **given}).is_reloadable
    assert not AdapterOptions(workers=WORKERS).is_reloadable


def test_trusted_proxies_wider_than_a_subnet_are_broad() -> None:
    networks = ("10.0.0.0/8", "10.1.2.0/24", "10.1.2.3", "fd00::/48", "fd00:0:0:1::/64", "0.0.0.0/0")

    options = AdapterOptions(workers=WORKERS, trusted_proxies=networks)

    assert [str(network) for network in options.broad_proxies] == ["10.0.0.0/8", "fd00::/48", "0.0.0.0/0"]


@pytest.mark.parametrize(
    "given",
    [
        {"peer_listen": "unix:/run/antiphon/peer.sock"},
        {"peer_listen": "127.0.0.1:0"},
        {"peer_listen": "[::1]:8010", "peer_advertise": "[2001:db8::1]:8010"},
        {"peer_listen": "0.0.0.0:8010", "peer_advertise": "10.0.0.1:8010", **PEER_FILES},
    ],
)
def test_peers_that_share_a_key_may_forward(given: dict[str, Any]) -> None:
    AdapterOptions(**SHARED, **given)
