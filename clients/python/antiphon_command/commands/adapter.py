"""`antiphon adapter`: one WebSocket server in front of workers."""

import argparse
import asyncio
import gc
from pathlib import Path
from typing import Any, Final

from antiphon_command.arguments.configuration import add_config_option, reader, refused
from antiphon_command.arguments.dispatcher import add_dispatcher_options
from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    add_help_all,
    add_log_level,
    as_given,
    configure_log,
    examples,
    given_options,
    non_negative_float,
    non_negative_int,
    port,
    positive_float,
    positive_int,
    seconds,
)
from antiphon_command.arguments.shared_key import (
    add_client_secret_key_option,
    add_worker_key_option,
)
from antiphon_command.output.failure import (
    ExitCode,
    Failure,
    require_extra,
    require_telemetry,
)

ADMIN_PORT: Final[dict[str, Any]] = {
    "type": port,
    "metavar": "PORT",
    "help": "port of the status page and /metrics; 0: a free one (default: none)",
}
"""The arguments of `--admin-port`, which commands that start an adapter share."""

_LISTEN: Final = (
    *("host", "port", "allow_anonymous", "auth", "keys"),
    *("tls_cert", "tls_key", "tls_port", "recordings"),
)
_PUBLIC: Final = (
    *("default_realtime_mode", "live_interrupt", "voices", "allowed_origins", "trusted_proxies"),
    *("no_page", "resume_window_s", "journal", "journal_s", "journal_mib"),
    *("usage_log",),
)


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "adapter",
        "run one WebSocket server in front of workers",
        examples(
            "antiphon adapter --worker unix:/run/antiphon/worker.sock",
            "antiphon adapter --worker 10.0.0.1:50051,10.0.0.2:50051 --port 9000",
        ),
        run,
    )
    add = command.add_argument
    add(
        "--worker",
        metavar="A,B",
        dest="workers",
        type=_targets,
        help="workers, as host:port or unix:path",
    )
    add_worker_key_option(command)
    add_listen_options(command)
    add("--drain-timeout-s", type=seconds, metavar="S", help="longest drain at shutdown (default 60)")
    add_log_level(command)
    add_config_option(command, "adapter")
    add_help_all(command)
    add_dispatcher_options(command.add_argument_group("several adapters"))
    add_public_options(command)
    _add_deployment_options(command)
    _add_worker_options(command)
    _add_access_options(command)
    _add_queue_options(command)
    _add_load_options(command)
    _add_session_options(command)
    _add_client_options(command)


def _add_deployment_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("several processes").add_argument
    add(
        "--workers-file",
        type=Path,
        metavar="FILE",
        help="file of workers, one on each line, instead of --worker; read again on SIGHUP",
    )
    add(
        "--processes-file",
        type=Path,
        metavar="FILE",
        help="JSON file in which antiphon serve describes its processes, for the status page",
    )
    add(
        "--reuse-port",
        action="store_true",
        help="share the ports with other adapters of this machine (SO_REUSEPORT)",
    )
    add(
        "--peer-listen",
        metavar="A",
        help="address for other adapters, which forward clients that reconnect there: host:port or "
        "unix:path (default: none)",
    )
    add(
        "--peer-advertise",
        metavar="A",
        help="address at which other adapters reach --peer-listen (default: the same)",
    )
    add(
        "--peer-ca",
        type=Path,
        metavar="FILE",
        help="PEM: authority that signs the certificates of adapters only",
    )
    add("--peer-cert", type=Path, metavar="FILE", help="PEM: certificate for other adapters")
    add("--peer-cert-key", type=Path, metavar="FILE", help="PEM: key of --peer-cert")


def _add_worker_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("connections to workers").add_argument
    add(
        "--worker-ca",
        type=Path,
        metavar="FILE",
        help="PEM: authority of the workers' certificates; turns TLS on",
    )
    add("--worker-cert", type=Path, metavar="FILE", help="PEM: client certificate, if workers require one")
    add("--worker-cert-key", type=Path, metavar="FILE", help="PEM: key of --worker-cert")
    add(
        "--worker-name",
        metavar="NAME",
        help="name in the certificate of every worker (default: the host of its address)",
    )


def _add_access_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("access")
    add = group.add_argument
    add("--auth-query", action="store_true", help="accept a key in the query, too, as the parameter token")
    add_client_secret_key_option(group)
    add(
        "--connections-per-address",
        type=non_negative_int,
        metavar="N",
        help="connections at once from one address beyond loopback, 0: no limit (default 64)",
    )
    add(
        "--opens-per-min-per-address",
        type=non_negative_int,
        metavar="N",
        help="connection attempts per minute from one address beyond loopback, 0: no limit (default 120)",
    )
    add(
        "--frames-per-s-per-address",
        type=non_negative_int,
        metavar="N",
        help="frames per second from one address beyond loopback, 0: no limit (default 2000)",
    )
    add(
        "--pages-per-min-per-address",
        type=non_negative_int,
        metavar="N",
        help="HTTP requests per minute from one address beyond loopback, 0: no limit (default 600)",
    )
    add(
        "--connections-per-key",
        type=non_negative_int,
        metavar="N",
        help="connections at once with one key, 0: no limit (default 0)",
    )
    add(
        "--opens-per-min-per-key",
        type=non_negative_int,
        metavar="N",
        help="connection attempts per minute with one key, 0: no limit (default 0)",
    )
    add(
        "--direct-slots-per-caller",
        type=non_negative_int,
        metavar="N",
        help="slots of a pool that one direct caller may hold or wait for; 0: all but one (default 0)",
    )
    add(
        "--direct-session-limit-s",
        type=seconds,
        metavar="S",
        help="longest session of a direct caller, 0: no limit (default 3600)",
    )
    add(
        "--direct-idle-s",
        type=seconds,
        metavar="S",
        help="longest time without a unit in a direct caller's session, 0: no limit (default 60)",
    )
    add("--admin-host", metavar="HOST", help="address of the administration port (default 127.0.0.1)")
    add("--admin-port", **ADMIN_PORT)
    add("--tls-host", metavar="HOST", help="address to listen on for TLS (default: --host)")
    add("--grpc-host", metavar="HOST", help="address of the gRPC port (default 127.0.0.1)")
    add(
        "--grpc-port",
        type=port,
        metavar="PORT",
        help="gRPC port for direct callers of workers; 0: a free one (default: none)",
    )


def _add_load_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("admission control").add_argument
    add(
        "--max-cpu",
        type=non_negative_float,
        metavar="CORES",
        help="CPU use above which no new session is accepted, 0: no limit (default 0.7)",
    )
    add(
        "--max-loop-lag-ms",
        type=non_negative_float,
        metavar="MS",
        help="lag of the event loop above which no new session is accepted, 0: no limit (default 250)",
    )
    add(
        "--handshakes-per-s",
        type=non_negative_float,
        metavar="N",
        help="WebSocket handshakes per second; further ones wait, 0: no limit (default 150)",
    )


def _add_queue_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("the queue").add_argument
    add("--queue-capacity", type=positive_int, metavar="N", help="most sessions that may wait (default 1000)")
    add(
        "--queue-update-s",
        type=positive_float,
        metavar="S",
        help="time between two queue updates (default 3)",
    )
    add(
        "--revisions",
        metavar="MODEL=A:N,B:N",
        type=_revisions,
        help="weights of a model's revisions, such as stable:95,canary:5 (default: all alike)",
    )
    add(
        "--queue-max-wait-s",
        type=seconds,
        metavar="S",
        help="longest wait for a slot, 0: no limit (default 0)",
    )
    add(
        "--no-worker-grace-s",
        type=seconds,
        metavar="S",
        help="longest wait while no worker is ready (default 10)",
    )


def _add_session_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("sessions").add_argument
    add(
        "--session-limit-audio-s",
        type=seconds,
        metavar="S",
        help="longest audio session, 0: no limit (default 600)",
    )
    add(
        "--session-limit-video-s",
        type=seconds,
        metavar="S",
        help="longest video session, 0: no limit (default 300)",
    )
    add(
        "--session-limit-realtime-s",
        type=seconds,
        metavar="S",
        help="longest session on /v1/realtime?model=, 0: no limit (default 3600)",
    )
    add(
        "--realtime-wait-s",
        type=seconds,
        metavar="S",
        help="longest wait for a slot on /v1/realtime?model=, where clients give up after 10 s (default 8)",
    )
    add(
        "--input-transcript-s",
        type=seconds,
        metavar="S",
        help="longest wait for a transcript of a user's turn, 0: no transcripts (default 60)",
    )
    add(
        "--init-timeout-s",
        type=positive_float,
        metavar="S",
        help="longest time from a slot to a valid first event (default 20)",
    )
    add(
        "--pause-timeout-s",
        type=positive_float,
        metavar="S",
        help="length of a pause if the client names none (default 60)",
    )
    add(
        "--duplex-idle-s",
        type=positive_float,
        metavar="S",
        help="longest idle time while other sessions wait (default 60)",
    )
    add(
        "--chat-idle-s",
        type=positive_float,
        metavar="S",
        help="longest time between two turns of a chat (default 600)",
    )
    add(
        "--transcription-idle-s",
        type=positive_float,
        metavar="S",
        help="longest time without audio in a transcription (default 30)",
    )
    add(
        "--transcription-buffer-s",
        type=positive_float,
        metavar="S",
        help="most audio that may wait for transcription (default 1800)",
    )
    add(
        "--unit-flush-s",
        type=positive_float,
        metavar="S",
        help="time after which an incomplete unit is padded with silence (default 1.25)",
    )
    add(
        "--silence-tail-units",
        type=non_negative_int,
        metavar="N",
        help="most units of silence added after an utterance (default 10)",
    )
    add(
        "--recordings-max-days",
        type=non_negative_float,
        metavar="D",
        help="age at which recordings are deleted, 0: never (default 7)",
    )
    add(
        "--recordings-max-gib",
        type=non_negative_float,
        metavar="GIB",
        help="size beyond which the oldest recordings are deleted, 0: no limit (default 10)",
    )


def _add_client_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("limits of input and output").add_argument
    add("--max-message-mib", type=positive_float, metavar="MIB", help="largest message (default 16)")
    add(
        "--max-chat-message-mib",
        type=positive_float,
        metavar="MIB",
        help="largest message of a chat (default 32)",
    )
    add("--max-append-s", type=positive_float, metavar="S", help="longest audio in one message (default 60)")
    add(
        "--max-lag-s",
        type=positive_float,
        metavar="S",
        help="age at which waiting input is dropped (default 3)",
    )
    add(
        "--max-waiting-units",
        type=positive_int,
        metavar="N",
        help="most input units of a session that may wait (default 32)",
    )
    add(
        "--max-waiting-mib",
        type=positive_float,
        metavar="MIB",
        help="most input of a session that may wait (default 8)",
    )
    add(
        "--max-inflight-mib",
        type=non_negative_float,
        metavar="MIB",
        help="input and output of all sessions above which new input is dropped, 0: no limit (default 128)",
    )
    add(
        "--outbox-audio-s",
        type=positive_float,
        metavar="S",
        help="most output audio that may wait for a client (default 3)",
    )
    add(
        "--outbox-mib",
        type=positive_float,
        metavar="MIB",
        help="most output that may wait for a client (default 4)",
    )
    add(
        "--slow-consumer-s",
        type=positive_float,
        metavar="S",
        help="time after which a client with a full outbox that reads nothing is disconnected (default 5)",
    )


def add_listen_options(command: argparse.ArgumentParser) -> None:
    """Add the options of addresses, keys and TLS, which commands that start an adapter pass on to it."""
    add = command.add_argument
    add("--host", help="address to listen on (default 127.0.0.1)")
    add("--port", type=port, help="port, 0: a free one (default 8006)")
    add("--allow-anonymous", action="store_true", help="serve beyond loopback without keys")
    add("--auth", choices=("off", "keys", "redis"), metavar="HOW", help="off, keys or redis (default off)")
    add("--keys", type=Path, metavar="FILE", help="keys of clients, see antiphon key")
    add("--tls-cert", type=Path, metavar="FILE", help="PEM: certificate chain; listen with TLS, too")
    add("--tls-key", type=Path, metavar="FILE", help="PEM: key of --tls-cert")
    add("--tls-port", type=port, metavar="PORT", help="TLS port, 0: a free one (default 8443)")
    add("--recordings", type=Path, metavar="DIR", help="record every session there (default: none)")


def add_public_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the public services, which commands that start an adapter pass on to it."""
    add = command.add_argument_group("content").add_argument
    add(
        "--default-realtime-mode",
        metavar="MODE",
        choices=("video", "audio", "chat", "transcription"),
        help="mode of /v1/realtime without a mode (default video)",
    )
    add(
        "--live-interrupt",
        metavar="BY",
        choices=("speech", "model"),
        help="source of barge-in on /v1/live/sessions: detected speech, or only the model (default speech)",
    )
    add(
        "--resume-window-s",
        type=seconds,
        metavar="S",
        help="time for which a session waits for its client to reconnect, 0: none (default 30)",
    )
    add(
        "--journal-s",
        type=seconds,
        metavar="S",
        help="length of the journal of a full-duplex session, 0: no failover (default 60)",
    )
    add(
        "--journal",
        metavar="WHERE",
        choices=("memory", "redis"),
        help="store of journals; redis: another adapter takes over when this one dies (default memory)",
    )
    add(
        "--journal-mib",
        type=non_negative_float,
        metavar="MIB",
        help="size of all journals; beyond it each session keeps its share (default 256)",
    )
    add("--usage-log", type=Path, metavar="FILE", help="append a JSON line for each session (default: none)")
    add("--no-page", action="store_true", help="do not serve the web page at /")
    add(
        "--voices",
        type=Path,
        metavar="DIR",
        help="folder with default.wav, the voice for clients that ask for one",
    )
    add(
        "--allowed-origins",
        metavar="A,B",
        type=_listed,
        help="web origins such as https://example.org, * for any (default: local ones on loopback, else any)",
    )
    add(
        "--trusted-proxies",
        metavar="A,B",
        type=_listed,
        help="addresses or networks of proxies whose X-Forwarded-For is trusted (default none)",
    )


def given_adapter_options(arguments: argparse.Namespace) -> list[str]:
    """Return the given options of `add_listen_options` and `add_public_options`, as arguments."""
    return as_given(arguments, (*_LISTEN, *_PUBLIC))


def run(arguments: argparse.Namespace) -> int:
    """Run the adapter until a signal; print `adapter ready on URL` once it listens."""
    require_extra("adapter", "adapter")
    require_telemetry()
    from threadpoolctl import threadpool_limits

    from ws_adapter.app import serve
    from ws_adapter.options import AdapterOptions
    from ws_adapter.process.allocator import keep_freed_memory
    from ws_adapter.process.errors import ConfigurationError
    from ws_adapter.process.scheduling import start_grpc

    configure_log(arguments)
    try:
        options = given_options(AdapterOptions, arguments)
    except ConfigurationError as error:
        raise Failure(refused(error, arguments), ExitCode.USAGE) from None
    keep_freed_memory()
    start_grpc()
    # Matrix products here are small: several threads would wait longer for each other than they compute.
    threadpool_limits(1, user_api="blas")
    gc.freeze()  # a collection over all imported objects would delay every session
    return asyncio.run(serve(options, reread=reader(arguments, AdapterOptions, ConfigurationError)))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def _revisions(text: str) -> tuple[str, ...]:
    """Parse `a=stable:95,canary:5,b=...`; a part without a model belongs to the model before it."""
    entries: list[str] = []
    for part in _listed(text):
        if entries and "=" not in part:
            entries[-1] += f",{part}"
        else:
            entries.append(part)
    return tuple(entries)


def _targets(text: str) -> tuple[str, ...]:
    targets = tuple(target.strip() for target in text.split(","))
    if not all(targets):
        raise argparse.ArgumentTypeError("name one worker or several with commas between them")
    return targets
