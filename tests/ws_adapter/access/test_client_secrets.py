"""Client secrets by themselves: who takes which, for how long, and what fits in."""

import base64
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.access.client_secrets import LONGEST_SECRET, PREFIX, ClientSecrets, Grant, TooLong
from ws_adapter.access.keys import make_key
from ws_adapter.access.rights import ALL_RIGHTS

KEY = b"k" * 32
HASH = make_key("alice")[1].hash
HOLDER = bytes.fromhex(HASH)[:16]
SESSION = b'{"type":"realtime","instructions":"Be kind."}'


def test_any_adapter_with_the_same_key_takes_it_and_without_one_only_its_maker() -> None:
    clock = ManualClock()
    expires_at = int(clock.unix()) + 600
    value = ClientSecrets((KEY,), clock).make(HASH, SESSION, expires_at)
    assert ClientSecrets((KEY,), clock).read(value) == Grant(HOLDER, ALL_RIGHTS, SESSION)
    assert ClientSecrets((b"x" * 32,), clock).read(value) is None

    one, other = ClientSecrets((), clock), ClientSecrets((), clock)
    value = one.make(None, b"{}", expires_at)
    assert one.read(value) == Grant(bytes(16), ALL_RIGHTS, b"{}")
    assert other.read(value) is None


async def test_it_opens_any_number_of_sessions_until_it_expires() -> None:
    clock = ManualClock()
    secrets = ClientSecrets((KEY,), clock)
    value = secrets.make(HASH, SESSION, int(clock.unix()) + 10)

    await clock.advance(9)
    assert secrets.read(value) is not None
    assert secrets.read(value) is not None
    await clock.advance(1)
    assert secrets.read(value) is None


def test_client_secret_is_valid_subprotocol_and_hides_key_hash() -> None:
    value = ClientSecrets((KEY,), ManualClock()).make(HASH, SESSION, 2**31)

    assert re.fullmatch(r"ek_[A-Za-z0-9_-]+", value)
    told = base64.urlsafe_b64decode(value.removeprefix(PREFIX) + "==")
    assert bytes.fromhex(HASH) not in told


def test_one_changed_character_makes_it_worthless() -> None:
    secrets = ClientSecrets((KEY,), ManualClock())
    value = secrets.make(HASH, SESSION, 2**31)

    for at in range(len(PREFIX), len(value) - 1):  # of the last one some bits mean nothing
        changed = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
        assert secrets.read(changed) is None, at


BASE64 = st.binary(max_size=200).map(lambda data: base64.urlsafe_b64encode(data).decode())


@given(st.text(max_size=200) | BASE64)
def test_unsigned_client_secret_is_rejected(text: str) -> None:
    secrets = ClientSecrets((KEY,), ManualClock())

    assert secrets.read(text) is None
    assert secrets.read(PREFIX + text) is None


def test_client_secret_too_long_for_request_line_is_rejected() -> None:
    clock = ManualClock()
    secrets = ClientSecrets((KEY,), clock)
    noise = base64.b64encode(random.Random(0).randbytes(LONGEST_SECRET))

    with pytest.raises(TooLong):
        secrets.make(HASH, b'"%s"' % noise, 2**31)
    value = secrets.make(HASH, b'"%s"' % (b"a" * 60_000), 2**31)
    assert len(value) < LONGEST_SECRET
    assert secrets.read("ek_" + "A" * LONGEST_SECRET) is None
