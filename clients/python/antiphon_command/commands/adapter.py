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
    amount,
    as_given,
    configure_log,
    examples,
    given_options,
    limit,
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
    "help": "status page, /metrics; 0: any free one (default: none)",
}
"""The options' type and help, shared with the commands that start an adapter."""

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
    add("--drain-timeout-s", type=seconds, metavar="S", help="for sessions at the end (default 60)")
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
        help="workers, one on each line, instead of --worker; read again on SIGHUP",
    )
    add(
        "--processes-file",
        type=Path,
        metavar="FILE",
        help="JSON of antiphon serve on its processes, for the status page",
    )
    add("--reuse-port", action="store_true", help="share the ports with other adapters of this machine")
    add(
        "--peer-listen",
        metavar="A",
        help="take clients that come back at another adapter, as host:port or unix:path (default: none)",
    )
    add("--peer-advertise", metavar="A", help="where other adapters reach that (default: where it listens)")
    add("--peer-ca", type=Path, metavar="FILE", help="PEM: signs the certificates of adapters only")
    add("--peer-cert", type=Path, metavar="FILE", help="PEM: shown to other adapters")
    add("--peer-cert-key", type=Path, metavar="FILE", help="PEM: the key of that certificate")


def _add_worker_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("connections to workers").add_argument
    add("--worker-ca", type=Path, metavar="FILE", help="PEM: speak TLS with workers whom it signed")
    add("--worker-cert", type=Path, metavar="FILE", help="PEM: shown to workers that want one")
    add("--worker-cert-key", type=Path, metavar="FILE", help="PEM: the key of that certificate")
    add(
        "--worker-name",
        metavar="NAME",
        help="name in the certificate of every worker (default: the host it is dialled at)",
    )


def _add_access_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("access")
    add = group.add_argument
    add("--auth-query", action="store_true", help="take a key from the query too, as token")
    add_client_secret_key_option(group)
    add(
        "--connections-per-address",
        type=limit,
        metavar="N",
        help="at once from one address beyond loopback, 0: any (default 64)",
    )
    add(
        "--opens-per-min-per-address",
        type=limit,
        metavar="N",
        help="attempts from one address beyond loopback, 0: any (default 120)",
    )
    add(
        "--frames-per-s-per-address",
        type=limit,
        metavar="N",
        help="over all connections of one address beyond loopback, 0: any (default 2000)",
    )
    add(
        "--pages-per-min-per-address",
        type=limit,
        metavar="N",
        help="of HTTP, for one address beyond loopback, 0: any (default 600)",
    )
    add("--connections-per-key", type=limit, metavar="N", help="at once, 0: any (default 0)")
    add("--opens-per-min-per-key", type=limit, metavar="N", help="0: any (default 0)")
    add(
        "--direct-slots-per-caller",
        type=limit,
        metavar="N",
        help="of a pool, by direct calls; 0: all but one (default 0)",
    )
    add(
        "--direct-session-limit-s",
        type=seconds,
        metavar="S",
        help="longest session of a direct caller, 0: any (default 3600)",
    )
    add("--direct-idle-s", type=seconds, metavar="S", help="without a unit in one, 0: any time (default 60)")
    add("--admin-host", metavar="HOST", help="address of the administration (default 127.0.0.1)")
    add("--admin-port", **ADMIN_PORT)
    add("--tls-host", metavar="HOST", help="address to listen on for TLS (default: --host)")
    add("--grpc-host", metavar="HOST", help="address of the gRPC port (default 127.0.0.1)")
    add(
        "--grpc-port",
        type=port,
        metavar="PORT",
        help="port for direct callers of workers; 0: a free one (default: none)",
    )


def _add_load_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("when it is too busy for new sessions").add_argument
    add("--max-cpu", type=amount, metavar="CORES", help="in use, 0: any (default 0.7)")
    add("--max-loop-lag-ms", type=amount, metavar="MS", help="of the event loop, 0: any (default 250)")
    add(
        "--handshakes-per-s",
        type=amount,
        metavar="N",
        help="of WebSockets, the others wait their turn; 0: any (default 150)",
    )


def _add_queue_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("the queue").add_argument
    add("--queue-capacity", type=positive_int, metavar="N", help="most that may wait (default 1000)")
    add("--queue-update-s", type=positive_float, metavar="S", help="between two queue updates (default 3)")
    add(
        "--revisions",
        metavar="MODEL=A:N,B:N",
        type=_revisions,
        help="divide a model's sessions by weight, such as stable:95,canary:5 (default: all are alike)",
    )
    add("--queue-max-wait-s", type=seconds, metavar="S", help="longest wait, 0: any (default 0)")
    add("--no-worker-grace-s", type=seconds, metavar="S", help="wait for a worker at all (default 10)")


def _add_session_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("sessions").add_argument
    add("--session-limit-audio-s", type=seconds, metavar="S", help="longest session, 0: any (default 600)")
    add("--session-limit-video-s", type=seconds, metavar="S", help="longest session, 0: any (default 300)")
    add(
        "--session-limit-realtime-s",
        type=seconds,
        metavar="S",
        help="longest session on /v1/realtime?model=, 0: any (default 3600)",
    )
    add(
        "--realtime-wait-s",
        type=seconds,
        metavar="S",
        help="wait of such a session for a slot, below the 10 s of its clients (default 8)",
    )
    add(
        "--input-transcript-s",
        type=seconds,
        metavar="S",
        help="longest transcription of a user's turn in Realtime and Live, 0: none (default 60)",
    )
    add("--init-timeout-s", type=positive_float, metavar="S", help="from slot to first event (default 20)")
    add("--pause-timeout-s", type=positive_float, metavar="S", help="pause if none is asked for (default 60)")
    add("--duplex-idle-s", type=positive_float, metavar="S", help="idle while others wait (default 60)")
    add("--chat-idle-s", type=positive_float, metavar="S", help="of a chat between turns (default 600)")
    add("--transcription-idle-s", type=positive_float, metavar="S", help="then it is over (default 30)")
    add("--transcription-buffer-s", type=positive_float, metavar="S", help="audio waiting (default 1800)")
    add("--unit-flush-s", type=positive_float, metavar="S", help="then short input is padded (default 1.25)")
    add("--silence-tail-units", type=limit, metavar="N", help="of silence after an utterance (default 10)")
    add("--recordings-max-days", type=amount, metavar="D", help="then they go, 0: never (default 7)")
    add("--recordings-max-gib", type=amount, metavar="GIB", help="then the oldest go, 0: any (default 10)")


def _add_client_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("limits of input and output").add_argument
    add("--max-message-mib", type=positive_float, metavar="MIB", help="largest message (default 16)")
    add("--max-chat-message-mib", type=positive_float, metavar="MIB", help="of a chat (default 32)")
    add("--max-append-s", type=positive_float, metavar="S", help="longest audio at once (default 60)")
    add("--max-lag-s", type=positive_float, metavar="S", help="older input is dropped (default 3)")
    add("--max-waiting-units", type=positive_int, metavar="N", help="of input (default 32)")
    add("--max-waiting-mib", type=positive_float, metavar="MIB", help="of input (default 8)")
    add("--max-inflight-mib", type=amount, metavar="MIB", help="of all sessions, 0: any (default 128)")
    add("--outbox-audio-s", type=positive_float, metavar="S", help="of output (default 3)")
    add("--outbox-mib", type=positive_float, metavar="MIB", help="of output (default 4)")
    add("--slow-consumer-s", type=positive_float, metavar="S", help="without reading (default 5)")


def add_listen_options(command: argparse.ArgumentParser) -> None:
    """Add the listen options, which commands that start an adapter pass on to it."""
    add = command.add_argument
    add("--host", help="address to listen on (default 127.0.0.1)")
    add("--port", type=port, help="0 takes any free one (default 8006)")
    add("--allow-anonymous", action="store_true", help="serve beyond this machine without a key")
    add("--auth", choices=("off", "keys", "redis"), metavar="HOW", help="off, keys or redis (default off)")
    add("--keys", type=Path, metavar="FILE", help="keys of clients, see antiphon key")
    add("--tls-cert", type=Path, metavar="FILE", help="PEM: speak TLS too")
    add("--tls-key", type=Path, metavar="FILE", help="PEM: the key of the certificate")
    add("--tls-port", type=port, metavar="PORT", help="0 takes any free one (default 8443)")
    add("--recordings", type=Path, metavar="DIR", help="record every session there (default: none)")


def add_public_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the public services, which are passed on in the same way."""
    add = command.add_argument_group("content").add_argument
    add(
        "--default-realtime-mode",
        metavar="MODE",
        choices=("video", "audio", "chat", "transcription"),
        help="of /v1/realtime without a mode (default video)",
    )
    add(
        "--live-interrupt",
        metavar="BY",
        choices=("speech", "model"),
        help="end an answer on /v1/live/sessions by speech over it, or only by the model (default speech)",
    )
    add(
        "--resume-window-s",
        type=seconds,
        metavar="S",
        help="wait for a client that lost its connection, 0: not at all (default 30)",
    )
    add(
        "--journal-s",
        type=seconds,
        metavar="S",
        help="of a full-duplex session keep the last S for another worker, 0: none (default 60)",
    )
    add(
        "--journal",
        metavar="WHERE",
        choices=("memory", "redis"),
        help="where journals are kept; redis: another adapter goes on when this one dies (default memory)",
    )
    add(
        "--journal-mib",
        type=amount,
        metavar="MIB",
        help="all journals together; beyond it each session keeps its share (default 256)",
    )
    add("--usage-log", type=Path, metavar="FILE", help="a JSON line for each session (default: none)")
    add("--no-page", action="store_true", help="do not serve the web page at /")
    add("--voices", type=Path, metavar="DIR", help="folder with default.wav, a voice clients may ask for")
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
        help="trusted proxies: their X-Forwarded-For counts (default none)",
    )


def given_adapter_options(arguments: argparse.Namespace) -> list[str]:
    """Return the given ones of both groups, as arguments of `antiphon adapter`."""
    return as_given(arguments, (*_LISTEN, *_PUBLIC))


def run(arguments: argparse.Namespace) -> int:
    """Run the adapter until a signal; print `adapter ready on URL` when it listens."""
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
    # A matrix product here is small: more threads would wait for each other longer than they compute.
    threadpool_limits(1, user_api="blas")
    gc.freeze()  # a collection that looks through all that was imported would be felt by every session
    return asyncio.run(serve(options, reread=reader(arguments, AdapterOptions, ConfigurationError)))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def _revisions(text: str) -> tuple[str, ...]:
    """Parse `a=stable:95,canary:5,b=...`: a part without a model belongs to the one before it."""
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
