"""The plan of the processes of `antiphon serve`."""

import pytest

from antiphon.cli.processes.plan import Plan


@pytest.mark.parametrize(
    ("shared", "reloads"),
    [
        ((), False),
        (("--dispatcher-password-file", "password"), False),
        (("--dispatcher-ca", "ca.pem"), True),
        (("--dispatcher-cert", "c.pem", "--dispatcher-cert-key", "c.key"), True),
    ],
)
def test_workers_are_told_to_reload_only_where_they_have_certificates(
    shared: tuple[str, ...], reloads: bool
) -> None:
    """SIGHUP ends a worker that has no file to read again."""
    assert Plan([], [], shared=shared).workers_reload is reloads
