"""Resume tokens: what is signed is read, and nothing else."""

import base64

import pytest

from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.access.client_secrets import ClientSecrets
from ws_adapter.resume.request import ResumeRequest, resume_request
from ws_adapter.resume.tokens import LONGEST_TOKEN, Claim, ResumeTokens, holder_of

KEYS = (b"first signing key", b"second signing key")
HOLDER = holder_of("ab" * 32)


def test_token_carries_session_holder_and_nonce() -> None:
    tokens = ResumeTokens(KEYS)

    token, nonce = tokens.make("sess_0123456789ab", HOLDER)

    claim = tokens.read(token)
    assert claim is not None
    assert claim == Claim("sess_0123456789ab", HOLDER, nonce, claim.mark)
    assert len(token) <= LONGEST_TOKEN


def test_token_leads_to_the_adapter_that_made_it_and_to_no_other() -> None:
    one, other = ResumeTokens(KEYS, "a1"), ResumeTokens(KEYS, "b2")

    claim = other.read(one.make("sess_0123456789ab", HOLDER)[0])

    assert claim is not None
    assert (one.is_own(claim), other.is_own(claim)) == (True, False)
    assert (other.is_of(claim, "a1"), other.is_of(claim, "b2")) == (True, False)


def test_tokens_of_one_session_and_their_marks_differ() -> None:
    tokens = ResumeTokens(KEYS, "a1")
    made = [tokens.make("sess_0123456789ab", HOLDER)[0] for _ in range(20)]
    claims = [tokens.read(token) for token in made]

    assert len(set(made)) == 20
    assert len({claim.mark for claim in claims if claim is not None}) == 20


def test_token_leads_to_its_adapter_until_its_key_is_rotated_out() -> None:
    tokens = ResumeTokens(KEYS, "a1")
    token, _ = tokens.make("sess_0123456789ab", HOLDER)

    tokens.use((b"third signing key", KEYS[0]))
    claim = tokens.read(token)
    assert claim is not None
    assert tokens.is_own(claim)

    tokens.use((b"third signing key",))
    assert tokens.read(token) is None


def test_token_with_any_changed_bit_is_not_read() -> None:
    tokens = ResumeTokens(KEYS)
    token, _ = tokens.make("sess_0123456789ab", HOLDER)
    text = token.removeprefix("rs_")
    signed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    for bit in range(8 * len(signed)):
        changed = bytearray(signed)
        changed[bit // 8] ^= 1 << bit % 8
        assert tokens.read("rs_" + base64.urlsafe_b64encode(changed).rstrip(b"=").decode()) is None


def test_garbage_client_secrets_and_tokens_of_a_server_without_a_key_are_not_read() -> None:
    for value in ("", "rs_", "rs_!", "rs_é", "rs_AAAA", "ek_AAAA", "rs_" + "A" * 300, "rs_" + "Zm9v" * 27):
        assert ResumeTokens(KEYS).read(value) is None, value
    clock = ManualClock()
    secret = ClientSecrets(KEYS, clock).make(None, b"{}", int(clock.unix()) + 60)
    assert ResumeTokens(KEYS).read("rs_" + secret.removeprefix("ek_")) is None
    assert ResumeTokens().read(ResumeTokens().make("sess_0123456789ab", HOLDER)[0]) is None


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        ("/v1/realtime", None),
        ("/v1/realtime?mode=audio", None),
        ("/v1/realtime?mode=audio&last_event=3", None),
        ("/v1/realtime?mode=resume", None),
        ("/v1/realtime?resume=rs_a&last_event=3", ResumeRequest("rs_a", 3)),
        ("/ws/duplex?last_event=0&resume=rs_a", ResumeRequest("rs_a", 0)),
        ("/ws/duplex?resume=", ResumeRequest("", None)),
        ("/ws/duplex?resume=rs_a", ResumeRequest("rs_a", None)),
        ("/ws/duplex?resume=rs_a&last_event=-1", ResumeRequest("rs_a", None)),
        ("/ws/duplex?resume=rs_a&last_event=1.0", ResumeRequest("rs_a", None)),
        ("/ws/duplex?resume=rs_a&last_event=%C2%B2", ResumeRequest("rs_a", None)),
        ("/ws/duplex?resume=rs_a&last_event=" + "9" * 13, ResumeRequest("rs_a", None)),
    ],
)
def test_request_is_read_from_the_query(target: str, asked: ResumeRequest | None) -> None:
    assert resume_request(target) == asked
