"""A spoken conversation with the shipped checkpoint, between processes that show each other certificates."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Recording, running_adapter, running_worker
from tests.e2e.test_websocket import answer
from tests.ws_adapter.support.calls import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure_worker(authority: Authority) -> Iterator[str]:
    certificate, key = authority.issue()
    options = ("--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(authority.ca))
    with running_worker(*options, slots=2) as server:
        yield server.address


async def test_conversation_over_tls_gets_the_same_answer_as_without(
    secure_worker: str, authority: Authority, adapter: str, recordings: list[Recording]
) -> None:
    plain = await answer(adapter.replace("http", "ws"), recordings[0], 1)
    assert plain[1] > 0
    certificate, key = authority.issue("adapter.test", called="adapter")
    shows = ("--worker-cert", str(certificate), "--worker-cert-key", str(key))
    options = ("--worker-ca", str(authority.ca), *shows)
    with running_adapter(secure_worker, *options) as server:
        assert await answer(server.address.replace("http", "ws"), recordings[0], 1) == plain
