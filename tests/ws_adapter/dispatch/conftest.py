"""Back ends of the tests of every dispatcher."""

import pytest

from tests.ws_adapter.support.backend import Build, in_process, on_redis
from tests.ws_adapter.support.remote_backend import remote


def _built(request: pytest.FixtureRequest) -> Build:
    if request.param == "redis":
        return on_redis(request.getfixturevalue("redis_server"))
    if request.param == "redis_users":
        users = request.getfixturevalue("redis_users")
        return on_redis(users.server, users)
    return {"in_process": in_process, "remote": remote}[request.param]


@pytest.fixture(params=["in_process", "redis", "redis_users", "remote"])
def build(request: pytest.FixtureRequest) -> Build:
    return _built(request)


@pytest.fixture(params=["in_process", "redis", "redis_users"])
def of_adapter(request: pytest.FixtureRequest) -> Build:
    """Return a back end of an adapter's own sessions, which have labels, come again and know more kinds."""
    return _built(request)
