"""Settings that cannot work are told in one sentence."""

import re
from typing import Any

import pytest

from ws_adapter.errors import ConfigurationError
from ws_adapter.options import AdapterOptions

WORKERS = ("127.0.0.1:50051",)


def test_defaults_are_those_of_the_protocol() -> None:
    options = AdapterOptions(workers=WORKERS)

    assert (options.host, options.port, options.queue_capacity) == ("127.0.0.1", 8006, 1000)
    assert options.max_message_bytes == 16_777_216
    assert options.limits.max_waiting_bytes == 8_388_608
    assert (options.session_limit_audio_s, options.init_timeout_s, options.drain_timeout_s) == (600, 20, 60)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_loopback_needs_no_permission(host: str) -> None:
    AdapterOptions(workers=WORKERS, host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_beyond_loopback_needs_permission(host: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"Refusing to listen on {host} without a key")):
        AdapterOptions(workers=WORKERS, host=host)
    AdapterOptions(workers=WORKERS, host=host, allow_anonymous=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"workers": ()}, "No worker is named"),
        ({"workers": ("",)}, "No worker is named"),
        ({"port": 65_536}, "port must be 0 to 65535, not 65536."),
        ({"queue_capacity": 0}, "queue_capacity must be at least 1, not 0."),
        ({"init_timeout_s": 0}, "init_timeout_s must be above 0, not 0."),
        ({"unit_flush_s": float("nan")}, "unit_flush_s must be above 0, not nan."),
        ({"drain_timeout_s": -1}, "drain_timeout_s must be 0 or more, not -1."),
        ({"session_limit_audio_s": float("inf")}, "session_limit_audio_s must be 0 or more, not inf."),
    ],
)
def test_bad_values(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        AdapterOptions(**{"workers": WORKERS, **change})
