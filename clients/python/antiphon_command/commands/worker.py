"""`antiphon worker`: one inference service."""

import argparse
import asyncio
from pathlib import Path
from typing import Final

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
    non_negative_int,
    port,
    positive_float,
    positive_int,
    seconds,
)
from antiphon_command.arguments.shared_key import add_admin_key_option, add_worker_key_option
from antiphon_command.output.failure import (
    ExitCode,
    Failure,
    require_extra,
    require_telemetry,
)

DTYPES: Final = ("float32", "bfloat16", "float16")
KERNELS: Final = ("auto", "off")
EARS: Final = ("full", "fast")
COMPILE: Final = ("off", "on")
ENGINES: Final = ("antiphon", "vllm")
BACKENDS: Final = ("mp", "ray")

_MODEL: Final = ("model", "slots", "threads", "kernels", "compile", "ear")
_ENGINE: Final = (
    *("engine", "context_limit", "dtype"),
    *("tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend"),
    *("quantization", "gpu_memory_utilization"),
)
_MINICPMO: Final = ("no_speech", "vocoder", "vocoder_steps", "vocoder_dtype", "voice")


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "worker",
        "run one inference service, which speaks gRPC",
        examples(
            "antiphon worker --listen unix:/run/antiphon/worker.sock --slots 8",
            "antiphon worker --model ./checkpoint --device cuda --listen 127.0.0.1:50051",
        ),
        run,
    )
    add = command.add_argument
    add("--listen", metavar="ADDRESS", help="host:port or unix:path (default 127.0.0.1:50051)")
    add_model_options(command)
    add("--worker-id", metavar="NAME", help="first part of its id (default worker)")
    add("--drain-timeout-s", type=seconds, metavar="S", help="longest drain at shutdown (default 30)")
    add_worker_key_option(command)
    add_context_options(command)
    add("--seed", type=int, metavar="N", help="makes sessions without a seed repeatable")
    add_log_level(command)
    add_config_option(command, "worker")
    add_help_all(command)
    add_kernel_option(command)
    add_minicpmo_options(command)
    add_engine_options(command)
    add = command.add_argument_group("TLS").add_argument
    add("--tls-cert", type=Path, metavar="FILE", help="PEM: certificate chain; turns TLS on")
    add("--tls-key", type=Path, metavar="FILE", help="PEM: key of --tls-cert")
    add(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="PEM: accept only callers with a certificate that it signed",
    )
    add = command.add_argument_group("gRPC").add_argument
    add("--insecure-grpc", action="store_true", help="allow plain TCP beyond loopback, with a key of leases")
    add("--grpc-compression", choices=("gzip",), help="compress messages, for callers with certificates")
    add = command.add_argument_group("the sliding window of full duplex and transcription").add_argument
    add(
        "--window-high",
        type=positive_int,
        metavar="TOKENS",
        help="drop old units when a context exceeds this",
    )
    add(
        "--window-low",
        type=positive_int,
        metavar="TOKENS",
        help="drop old units down to this (default: the model's)",
    )
    add = command.add_argument_group("the prefix cache").add_argument
    add("--shared-prompts", type=Path, metavar="FILE", help="JSON array of prompts that all tenants share")
    group = command.add_argument_group("the shared queue")
    add = group.add_argument
    add_dispatcher_options(group)
    add(
        "--advertise",
        metavar="TARGET",
        help="address at which adapters reach this worker (default: --listen)",
    )
    add(
        "--unleased-slots",
        type=non_negative_int,
        metavar="N",
        help="slots for callers without a lease (default 0)",
    )
    add = command.add_argument_group("a canary").add_argument
    add(
        "--revision",
        metavar="NAME",
        help="revision of the model, see antiphon adapter --revisions (default stable)",
    )
    group = command.add_argument_group("administration")
    add = group.add_argument
    add("--admin-host", metavar="HOST", help="address of the administration port (default 127.0.0.1)")
    add(
        "--admin-port", type=port, metavar="PORT", help="port of the status page and /metrics (default: none)"
    )
    add_admin_key_option(group)
    add(
        "--no-admission",
        action="store_true",
        help="switch admission control off: fill all slots, even if units miss deadlines",
    )


def add_model_options(command: argparse.ArgumentParser) -> None:
    """Add the options of all models, which commands that start a worker pass on to it."""
    add = command.add_argument
    add("--model", metavar="NAME", help="folder or hub OWNER/NAME (default antiphon-mini)")
    add("--device", help="cpu, cuda, cuda:1 ... (default cpu)")
    add(
        "--slots",
        type=positive_int,
        metavar="N",
        help="most conversations (default: as many as fit)",
    )
    add("--threads", type=positive_int, metavar="N", help="CPU threads of the model (default: one)")


def add_context_options(command: argparse._ActionsContainer) -> None:
    """Add the options for the length of contexts and the data type of the model."""
    add = command.add_argument
    add(
        *("--context-limit", "--max-model-len"),
        type=positive_int,
        metavar="TOKENS",
        help="longest context (default: the model's)",
    )
    add(
        "--dtype",
        metavar="TYPE",
        choices=DTYPES,
        help="float32, bfloat16, float16 (default: by device)",
    )


def add_engine_options(command: argparse.ArgumentParser) -> None:
    """Add the option that chooses the engine, and the options of vLLM."""
    add = command.add_argument_group("vLLM").add_argument
    add(
        "--engine",
        metavar="NAME",
        choices=ENGINES,
        help="antiphon or vllm (default antiphon)",
    )
    add("--tensor-parallel-size", type=positive_int, metavar="N", help="devices for each layer (default 1)")
    add("--pipeline-parallel-size", type=positive_int, metavar="N", help="pipeline stages (default 1)")
    add(
        "--distributed-executor-backend",
        metavar="NAME",
        choices=BACKENDS,
        help="mp: processes on this machine, ray: a cluster (default mp)",
    )
    add("--quantization", metavar="METHOD", help="quantisation of the weights (default: the checkpoint's)")
    add("--gpu-memory-utilization", type=positive_float, metavar="X", help="share of memory (default vLLM's)")


def add_kernel_option(command: argparse.ArgumentParser) -> None:
    """Add the options of kernels, of compiled regions and of antiphon-mini's recogniser."""
    command.add_argument_group("the CPU").add_argument(
        "--kernels", metavar="USE", choices=KERNELS, help="compiled kernels; off is torch only (default auto)"
    )
    command.add_argument_group("antiphon-mini").add_argument(
        "--ear", metavar="USE", choices=EARS, help="fast: without the speech recogniser (default full)"
    )
    command.add_argument_group("a GPU").add_argument(
        "--compile", metavar="USE", choices=COMPILE, help="off or on: torch.compile (default: on for CUDA)"
    )


def add_minicpmo_options(command: argparse.ArgumentParser) -> None:
    """Add the options of MiniCPM-o."""
    add = command.add_argument_group("MiniCPM-o").add_argument
    add("--no-speech", action="store_true", help="serve text only, without a vocoder")
    add("--vocoder", type=Path, metavar="FOLDER", help="converted vocoder (default: MODEL/vocoder)")
    add(
        "--vocoder-steps",
        type=positive_int,
        metavar="N",
        help="steps of its flow; more take longer (default 5)",
    )
    add(
        "--vocoder-dtype",
        metavar="TYPE",
        choices=DTYPES,
        help="type of its flow and caches: float32, bfloat16, float16 (default float32)",
    )
    add("--voice", type=Path, metavar="WAV", help="voice of sessions without one (default: the vocoder's)")


def given_model_options(arguments: argparse.Namespace) -> list[str]:
    """Return the given options of the model, the engine and MiniCPM-o, as arguments of `antiphon worker`."""
    return as_given(arguments, (*_MODEL, *_ENGINE, *_MINICPMO))


def require_engine(command: str, arguments: argparse.Namespace) -> None:
    """Raise `Failure` if the chosen engine is not installed."""
    if getattr(arguments, "engine", None) == "vllm":
        require_extra(f"{command} --engine vllm", "vllm")


def check_model(arguments: argparse.Namespace) -> None:
    """Raise `Failure` if the chosen model cannot be found; load nothing."""
    from inference_service.checkpoints.location import locate
    from inference_service.models.errors import CheckpointError

    try:
        if "model" in arguments:
            locate(arguments.model)
    except CheckpointError as error:
        raise Failure(str(error), ExitCode.USAGE) from None


def run(arguments: argparse.Namespace) -> int:
    """Run the worker until a signal; print `worker ready on ADDRESS` when it is ready."""
    require_engine("worker", arguments)
    require_extra("worker", "worker")
    check_model(arguments)
    require_telemetry()
    from inference_service.app import announce, freeze_loaded_objects, serve
    from inference_service.errors import ConfigurationError
    from inference_service.options import WorkerOptions

    def ready(address: str) -> None:
        freeze_loaded_objects()
        announce(address)

    configure_log(arguments)
    try:
        options = given_options(WorkerOptions, arguments)
    except ConfigurationError as error:
        raise Failure(refused(error, arguments), ExitCode.USAGE) from None
    reread = reader(arguments, WorkerOptions, ConfigurationError)
    return asyncio.run(serve(options, on_ready=ready, reread=reread))
