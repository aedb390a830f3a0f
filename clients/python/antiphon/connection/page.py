"""HTTP requests for pages of a server."""

import asyncio
import http.client
import urllib.error
import urllib.request
from typing import Final

from antiphon.connection import refusals
from antiphon.connection.endpoint import is_loopback

LARGEST_ANSWER: Final = 4 * 2**20
_TIMEOUT_S: Final = 10.0


async def fetch(url: str, api_key: str | None) -> bytes:
    """Return the body of the page, at most `LARGEST_ANSWER` bytes.

    The request uses the proxy of the environment unless the server is on loopback. Raises `ConnectError` or
    `AuthError`.
    """
    return await asyncio.to_thread(_get, url, api_key)


def _get(url: str, api_key: str | None) -> bytes:
    proxies: dict[str, str] | None = {} if is_loopback(url) else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    request = urllib.request.Request(url)
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read(LARGEST_ANSWER)
            return body
    except urllib.error.HTTPError as error:
        raise refusals.from_http_status(url, error.code, error.headers.get("Retry-After")) from error
    except urllib.error.URLError as error:
        cause = error.reason if isinstance(error.reason, OSError) else OSError(str(error.reason))
        raise refusals.from_os_error(url, cause) from error
    except http.client.HTTPException as error:  # some of which are OSErrors
        raise refusals.no_server(url, "an HTTP server") from error
    except OSError as error:
        raise refusals.from_os_error(url, error) from error
