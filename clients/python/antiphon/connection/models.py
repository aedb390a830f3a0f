"""Lookup of the models that a server serves."""

from antiphon.connection.page import fetch
from antiphon.errors import ConnectError
from antiphon.protocol.fields import Fields


async def served_models(url: str, api_key: str | None, mode: str = "") -> tuple[str, ...]:
    """Return the names of the models that are ready to serve `mode`, or any mode if it is empty.

    `url` is the HTTP address of the page. A server that lists no modes is taken to serve all of them.

    Raises `ConnectError`, `AuthError`, or `ProtocolError` if the answer is malformed.
    """
    return _names(await fetch(url, api_key), mode)


def _names(body: bytes, mode: str) -> tuple[str, ...]:
    listed = Fields.of(body.decode(errors="replace")).values.get("data")
    models = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    models = [entry for entry in models if not mode or mode in (entry.get("modes") or [mode])]
    names = tuple(name for name in (Fields(model).text("id") for model in models) if name)
    if not names:
        raise ConnectError(
            "The server has no model that is ready.", reason="service_unavailable", retryable=True
        )
    return names
