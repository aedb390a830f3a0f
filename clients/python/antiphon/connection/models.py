"""Which models a server has."""

from antiphon.connection.page import fetch
from antiphon.errors import ConnectError
from antiphon.protocol.fields import Fields


async def served_models(url: str, api_key: str | None) -> tuple[str, ...]:
    """Names of the models that are ready to serve; `url` is that of the page, over HTTP.

    Raises `ConnectError`, `AuthError`, or `ProtocolError` if the answer is none.
    """
    return _names(await fetch(url, api_key))


def _names(body: bytes) -> tuple[str, ...]:
    listed = Fields.of(body.decode(errors="replace")).values.get("data")
    models = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    names = tuple(name for name in (Fields(model).text("id") for model in models) if name)
    if not names:
        raise ConnectError(
            "The server has no model that is ready.", reason="service_unavailable", retryable=True
        )
    return names
