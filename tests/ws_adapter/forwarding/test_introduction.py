"""An adapter introduces a client: the answer to the challenge is read, and nothing else."""

import pytest

from ws_adapter.forwarding.introduction import LONGEST_LINE, IntroductionReader, Introductions
from ws_adapter.web.message import Disconnected

KEYS = (b"first signing key", b"second signing key")
REQUEST = b"GET /v1/realtime HTTP/1.1\r\n"


def test_introduction_reader_extracts_address_and_leaves_following_bytes() -> None:
    reader = IntroductionReader(Introductions(KEYS))
    line = Introductions(KEYS).introduce(reader.challenge, "203.0.113.5")

    assert reader.feed(line + REQUEST) == REQUEST
    assert reader.client == "203.0.113.5"


@pytest.mark.parametrize("client", ["127.0.0.1", "2001:db8::1", "fe80::1%eth0", ""])
def test_introduction_that_comes_in_single_bytes_is_read(client: str) -> None:
    reader = IntroductionReader(Introductions(KEYS))
    line = Introductions(KEYS).introduce(reader.challenge, client)

    answers = [reader.feed(line[at : at + 1]) for at in range(len(line))]

    assert answers == [None] * (len(line) - 1) + [b""]
    assert reader.client == client


def test_introduction_signed_with_an_older_key_is_read_and_with_another_refused() -> None:
    reader = IntroductionReader(Introductions((b"third signing key", KEYS[0])))
    assert reader.feed(Introductions(KEYS).introduce(reader.challenge, "203.0.113.5")) == b""

    reader = IntroductionReader(Introductions(KEYS))
    with pytest.raises(Disconnected):
        reader.feed(Introductions((b"no key of ours",)).introduce(reader.challenge, "203.0.113.5"))


def test_malformed_or_foreign_introduction_is_rejected() -> None:
    for data in (b"\n", b"GET / HTTP/1.1\r\n", b"\xff" * (LONGEST_LINE + 1), b"fw_\n", b"rs_AA\n"):
        with pytest.raises(Disconnected):
            IntroductionReader(Introductions(KEYS)).feed(data)
    introductions = Introductions(KEYS)
    heard, reader = IntroductionReader(introductions), IntroductionReader(introductions)
    line = introductions.introduce(heard.challenge, "203.0.113.5")

    with pytest.raises(Disconnected):
        reader.feed(line)
    assert reader.client == ""


def test_introduction_with_any_changed_bit_is_refused() -> None:
    introductions = Introductions(KEYS)
    for bit in range(8 * 60):
        reader = IntroductionReader(introductions)
        line = bytearray(introductions.introduce(reader.challenge, "203.0.113.5"))
        line[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Disconnected):
            assert reader.feed(bytes(line) + b"\n") is None
