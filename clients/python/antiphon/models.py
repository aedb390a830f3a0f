"""Which models a server has."""

import asyncio
import http.client
import urllib.error
import urllib.request
from typing import Final

from antiphon import refusals
from antiphon.endpoint import is_loopback
from antiphon.errors import ConnectError
from antiphon.fields import Fields

_TIMEOUT_S: Final = 10.0
_LARGEST_ANSWER: Final = 1 << 20


async def served_models(url: str, api_key: str | None) -> tuple[str, ...]:
    """Names of the models that are ready to serve; `url` is that of the page, over HTTP.

    Goes through the proxy of the environment unless on loopback. Raises `ConnectError`, `AuthError`, or
    `ProtocolError` if the answer is none.
    """
    return _names(await asyncio.to_thread(_get, url, api_key))


def _get(url: str, api_key: str | None) -> bytes:
    proxies: dict[str, str] | None = {} if is_loopback(url) else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    request = urllib.request.Request(url)
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read(_LARGEST_ANSWER)
            return body
    except urllib.error.HTTPError as error:
        raise refusals.from_http_status(url, error.code) from error
    except urllib.error.URLError as error:
        cause = error.reason if isinstance(error.reason, OSError) else OSError(str(error.reason))
        raise refusals.from_os_error(url, cause) from error
    except OSError as error:
        raise refusals.from_os_error(url, error) from error
    except http.client.HTTPException as error:
        raise ConnectError(f"{url} does not answer as an HTTP server does.", reason="no_http") from error


def _names(body: bytes) -> tuple[str, ...]:
    listed = Fields.of(body.decode(errors="replace")).values.get("data")
    models = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    names = tuple(name for name in (Fields(model).text("id") for model in models) if name)
    if not names:
        raise ConnectError(
            "The server has no model that is ready.", reason="service_unavailable", retryable=True
        )
    return names
