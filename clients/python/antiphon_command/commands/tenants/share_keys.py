"""`antiphon share-keys`: upload of a file of keys for all adapters of one Redis."""

import argparse
import asyncio
from pathlib import Path

from antiphon_command.arguments.dispatcher import add_dispatcher_options
from antiphon_command.arguments.parser import Subcommands, add_command, examples
from antiphon_command.output.failure import ExitCode, Failure, require_extra
from antiphon_service.redis import (
    RedisUnusable,
    connect,
    disconnect,
    read_password,
    read_tls,
)

_TIMEOUT_S = 10.0


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "share-keys",
        "write a file of keys to the Redis of several adapters",
        examples(
            "antiphon share-keys keys --dispatcher redis://10.0.0.5:6379",
            "antiphon key alice >> keys && antiphon share-keys keys",
        ),
        run,
        "FILE",
    )
    command.add_argument("file", type=Path, metavar="FILE", help="lines printed by antiphon key")
    add_dispatcher_options(command)


def run(arguments: argparse.Namespace) -> int:
    """Check the file as an adapter does, replace all shared keys at once, and print their number."""
    require_extra("share-keys", "adapter")
    from ws_adapter.access.keys import read_key_file
    from ws_adapter.process.errors import ConfigurationError

    given = vars(arguments)
    if given.get("dispatcher") is None:
        raise Failure("Name the Redis of the adapters: pass --dispatcher URL.", ExitCode.USAGE)
    try:
        text, count = read_key_file(arguments.file)
    except ConfigurationError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    try:
        asyncio.run(_share(given, text))
    except RedisUnusable as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    print(f"{count} {'key is' if count == 1 else 'keys are'} shared")
    return ExitCode.OK


async def _share(given: dict[str, object], text: str) -> None:
    from redis.exceptions import RedisError

    from ws_adapter.usage.shared import call

    url = str(given["dispatcher"])
    files = [given.get(f"dispatcher_{name}") for name in ("ca", "cert", "cert_key", "password_file")]
    ca, certificate, key, password = [file if isinstance(file, Path) else None for file in files]
    client = connect(url, tls=read_tls(url, ca, certificate, key), password=read_password(password))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await call(client, "write_keys", text)
    except (RedisError, OSError, TimeoutError) as error:
        raise Failure(f"Redis did not accept the keys: {error!r}.", ExitCode.NO_CONNECTION) from None
    finally:
        await disconnect(client)
