"""Back ends of the tests of every dispatcher."""

import pytest

from tests.ws_adapter.support.backend import Build, in_process, on_redis


@pytest.fixture(params=["in_process", "redis", "redis_users"])
def build(request: pytest.FixtureRequest) -> Build:
    if request.param == "redis":
        return on_redis(request.getfixturevalue("redis_server"))
    if request.param == "redis_users":
        users = request.getfixturevalue("redis_users")
        return on_redis(users.server, users)
    return in_process
