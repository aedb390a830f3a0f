"""A worker process that plays a script, for tests that need real processes and signals.

    python -m tests.support.scripted_worker --listen 127.0.0.1:0 --script talk

Prints `worker ready on ADDRESS` when it serves. With `--prompted` a session whose system prompt is
`Script.as_prompt` plays that, and so does a chat turn whose system message is one. On standard input a line
`release KEY STEP UNIT` lets a unit go on, and `next PROMPT` is the script of the next TRANSCRIBE session; the
worker prints `holds KEY STEP UNIT` when one begins to wait.
"""

import argparse
import asyncio
import logging
import os
import sys
from dataclasses import replace

from antiphon_command.arguments.shared_key import add_worker_key_option
from inference_service.app import EngineFactory, serve
from inference_service.interface.setups import Mode
from inference_service.options import WorkerOptions
from inference_service.session.machine import Limits
from tests.support.scripted_engine import (
    INFO,
    TALK,
    Play,
    Script,
    ScriptedEngine,
    context_full,
    fails,
    hang,
    listen,
    speak,
    turn_end,
)

SCRIPTS: dict[str, tuple[Play, ...]] = {
    "listen": (listen(),),
    "talk": TALK,
    "reply": (turn_end("Yes."),),
    "slow": tuple(Play(play.says, play.end, delay_s=0.2) for play in TALK),
    "fail": (fails(),),
    "full": (listen(), listen(), context_full()),
    "hang": (listen(), hang("generate")),
    **{f"hang_{step}": (hang(step),) for step in ("prefill", "generate", "finalize")},
    "yields": (listen(), speak("Once upon a time", seconds=5.0), *[listen()] * 60),
    "fatal": (listen(), Play(breaks_device=True)),
    "stall": (listen(), Play(stalls_engine=True)),
}
"""Scripts by name; each begins again at its end."""


def main() -> int:
    parser = argparse.ArgumentParser(description="A worker that plays a script.")
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--script", choices=sorted(SCRIPTS), default="listen")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--drain-timeout-s", type=float, default=5.0)
    parser.add_argument("--slow-cleanup", action="store_true", help="slots are never clean again")
    parser.add_argument("--slow-start", action="store_true", help="no config is ever read")
    parser.add_argument("--fault", action="store_true", help="the engine cannot be loaded")
    parser.add_argument("--insecure-grpc", action="store_true")
    parser.add_argument("--replays", action="store_true", help="units and turns can be heard again")
    add_worker_key_option(parser)
    parser.add_argument("--prompted", action="store_true", help="sessions bring their scripts along")
    parser.add_argument(
        "--modes", help="such as chat,transcribe; without it audio, and with --prompted video"
    )
    parser.add_argument("--unit-s", type=float, default=Limits.unit_s, help="longest time for a unit")
    parser.add_argument("--context-limit", type=int, default=INFO.context_limit, help="tokens of a session")
    parser.add_argument("--config-s", type=float, default=Limits.config_s, help="... to be configured")
    parser.add_argument("--dispatcher", help="URL of the Redis of a shared queue")
    parser.add_argument("--advertise", help="where adapters dial it then")
    parser.add_argument("--admin-port", type=int, help="of the administration; the log names it")
    parser.add_argument("--step-s", type=float, default=Limits.step_s, help="... for a step of the engine")
    arguments = parser.parse_args()
    info = replace(
        INFO,
        sees=arguments.prompted,
        modes=_modes(arguments.modes, arguments.prompted),
        context_limit=arguments.context_limit,
        replays_units=arguments.replays,
        replays_turns=arguments.replays,
    )
    engine = ScriptedEngine(
        *SCRIPTS[arguments.script],
        slots=arguments.slots,
        info=info,
        repeat=True,
        slow_cleanup=arguments.slow_cleanup,
        slow_start=arguments.slow_start,
        forgetful=True,
        prompted=arguments.prompted,
    )
    same = ("listen", "slots", "drain_timeout_s", "insecure_grpc", "admin_port", "dispatcher", "advertise")
    options = WorkerOptions(
        worker_key=getattr(arguments, "worker_key", None), **{name: getattr(arguments, name) for name in same}
    )
    if arguments.admin_port is not None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    factory = _fail_to_load if arguments.fault else engine.start
    limits = Limits(unit_s=arguments.unit_s, step_s=arguments.step_s, config_s=arguments.config_s)
    return asyncio.run(_serve(options, engine, factory, limits, listens_to_input=arguments.prompted))


async def _serve(
    options: WorkerOptions,
    engine: ScriptedEngine,
    factory: EngineFactory,
    limits: Limits,
    *,
    listens_to_input: bool,
) -> int:
    if listens_to_input:
        engine.on_hold = _tell_hold
        loop = asyncio.get_running_loop()
        loop.add_reader(0, lambda: _obey(engine))
    return await serve(options, factory=factory, limits=limits)


def _tell_hold(key: str, step: str, unit: int) -> None:
    if key:
        print("holds", key, step, unit, flush=True)


def _fail_to_load(*_: object) -> ScriptedEngine:
    raise MemoryError("no room for the model")


def _obey(engine: ScriptedEngine) -> None:
    """Reads what the test says; its lines are short, so they come whole."""
    told = os.read(0, 65_536).decode()
    if not told:
        asyncio.get_running_loop().remove_reader(0)
    for line in told.splitlines():
        command, rest = line.split(maxsplit=1)
        if command == "next":
            script = Script.of_prompt(rest)
            assert script is not None
            engine.scripts.append(script)
            print("next script is known", flush=True)
        else:
            key, step, unit = rest.split()
            engine.release(key, step, int(unit))


def _modes(names: str | None, prompted: bool) -> frozenset[Mode]:
    if names is None:
        return frozenset({Mode.AUDIO, Mode.VIDEO} if prompted else {Mode.AUDIO})
    return frozenset(Mode[name.upper()] for name in names.split(","))


if __name__ == "__main__":
    sys.exit(main())
