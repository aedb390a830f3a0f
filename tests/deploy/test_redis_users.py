"""The two users of Redis: they may do what adapters and workers do, and nothing else."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from antiphon_service.pools import pool_name
from antiphon_service.redis import LIBRARY, connect, prefix
from tests.deploy.files import ROOT
from tests.support.redis_server import INSTALLED, MISSING, RedisServer
from tests.support.redis_users import ACL, PASSWORDS, RedisUsers, acl_text
from tests.ws_adapter.shared_journal.test_journals import PATH, Talk, claim
from tests.ws_adapter.support.backend import until_told
from ws_adapter.peers import shared
from ws_adapter.peers.base import AdmissionRequest, Admitted, Peer, Refused
from ws_adapter.shared_journal import link
from ws_adapter.shared_journal.journals import SharedJournals
from ws_adapter.shared_journal.record import StoredJournal
from ws_adapter.usage import shared as usage

POOL = prefix(pool_name("antiphon-mini", ["audio", "chat"]))
DIRECTORY = "antiphon:{pools}:"
DISPATCH = ROOT / "ws_adapter/dispatch/functions.lua"
PEERS = ROOT / "ws_adapter/peers/functions.lua"
TENANTS = ROOT / "ws_adapter/usage/functions.lua"
JOURNAL = ROOT / "ws_adapter/shared_journal/functions.lua"

OF_WORKER = ["worker_beat", "worker_beat_as", "slot_free", "worker_leave", "announce"]
OF_ADAPTER = [
    *("enqueue", "enqueue_for", "enqueue_as", "enqueue_weighted", "weigh", "adapter_beat", "leave"),
    *("cancel", "lease_return", "stats", "waiting", "find", "pools"),
]
OF_PEERS = ["meet", "leave", "list"]
OF_TENANTS = ["take", "read_keys"]
OF_JOURNAL = ["begin", "append", "beat", "claim", "release", "forget"]

pytestmark = pytest.mark.skipif(INSTALLED is None, reason=MISSING)


def commands_of(source: Path, functions: list[str]) -> set[str]:
    """Return the commands, in lower case, that the registered `functions` call, themselves or by helpers."""
    text = re.sub(r"--.*", "", source.read_text())
    registered = dict(re.findall(r"register_function\('(\w+)', (\w+)\)", text))
    parts = re.split(
        r"^local function (\w+)", text.partition("redis.register_function")[0], flags=re.MULTILINE
    )
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    waiting, seen, commands = [registered[name] for name in functions], set(), set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            commands |= {command.lower() for command in re.findall(r"call\('([A-Z]+)'", bodies[name])}
            waiting += [called for called in re.findall(r"\b(\w+)\(", bodies[name]) if called in bodies]
    return commands


def rules_of(user: str) -> set[str]:
    [line] = [line for line in ACL.read_text().splitlines() if line.startswith(f"user {user} ")]
    return set(line.split()[3:])


def allowed(user: str) -> set[str]:
    return {rule[1:] for rule in rules_of(user) if rule.startswith("+")}


def client(users: RedisUsers, user: str) -> Redis:
    socket, password = str(users.server.socket), PASSWORDS[user]
    return Redis(unix_socket_path=socket, username=user, password=password, decode_responses=True)


def test_adapter_and_worker_have_exactly_the_commands_that_their_functions_call() -> None:
    dispatch = [f"{LIBRARY}_{name}" for name in OF_ADAPTER]
    peers = [f"{shared.LIBRARY}_{name}" for name in OF_PEERS]
    tenants = [f"{usage.LIBRARY}_{name}" for name in OF_TENANTS]
    journal = [f"{link.LIBRARY}_{name}" for name in OF_JOURNAL]
    inside = commands_of(DISPATCH, dispatch) | commands_of(PEERS, peers) | commands_of(TENANTS, tenants)
    inside |= commands_of(JOURNAL, journal)
    outside = {"function|load", "subscribe", "unsubscribe"}
    functions = {f"fcall|{name}" for name in dispatch + peers + tenants + journal}
    assert allowed("antiphon-adapter") == inside | outside | functions
    worker = [f"{LIBRARY}_{name}" for name in OF_WORKER]
    expected = commands_of(DISPATCH, worker) | {"subscribe"} | {f"fcall|{name}" for name in worker}
    assert allowed("antiphon-worker") == expected


def test_services_call_no_function_that_their_user_lacks() -> None:
    called = {
        "ws_adapter/dispatch/redis.py": OF_ADAPTER,
        "ws_adapter/peers/shared.py": OF_PEERS,
        "inference_service/registration.py": OF_WORKER,
        "ws_adapter/usage/shared.py": ["take"],
        "ws_adapter/usage/shared_keys.py": ["read_keys"],
    }
    for file, functions in called.items():
        text = (ROOT / file).read_text()
        for name in functions:
            assert f'"{name}"' in text, (file, name)
        libraries = "".join(source.read_text() for source in (DISPATCH, PEERS, TENANTS))
        registered = re.findall(r"register_function\('\w+_v1_(\w+)'", libraries)
        for name in set(registered) - set(functions):
            assert not re.search(rf'(Call|call|_ask|_part)\([^"\n]*"{name}"', text), (file, name)


ATTACKS_OF_BOTH = [
    *("KEYS *", "SCAN 0", "RANDOMKEY", "FLUSHALL", "FLUSHDB", "CONFIG GET *", "CONFIG SET dir /tmp"),
    *("DEBUG SLEEP 1", "SHUTDOWN NOSAVE", "SAVE", "REPLICAOF 203.0.113.1 6379", "SELECT 1", "INFO", "DBSIZE"),
    *("MIGRATE 203.0.113.1 6379 k 0 1", "MODULE LOAD /tmp/x.so", "MONITOR"),
    *("CLIENT LIST", "CLIENT KILL ID 1", "ACL LIST", "ACL SETUSER antiphon-worker +@all"),
    *("EVAL 'return 1' 0", f"EVALSHA {'0' * 40} 0", "SCRIPT LOAD 'return 1'"),
    *("FUNCTION LIST", "FUNCTION DUMP", "FUNCTION FLUSH", f"FUNCTION DELETE {LIBRARY}", "FUNCTION KILL"),
    *(f"FCALL another_library_function 1 {POOL}", f"FCALL_RO {LIBRARY}_stats 1 {POOL}"),
    *(f"RENAME {POOL}queue {POOL}stolen", f"RESTORE {POOL}x 0 x"),
    *("GET another:application", "SET another:application 1", "HGETALL antiphon:x"),
    *("PUBLISH another:channel x", "SUBSCRIBE another:channel", "SUBSCRIBE __keyspace@0__:queue"),
    "PSUBSCRIBE *",
]
CALLS_OF_ADAPTER = [
    *("enqueue 1 {} t a 3000 audio_duplex 10 0", "adapter_beat 1 {} a 3000 t", "cancel 1 {} t"),
    *(
        "leave 1 {} t",
        "lease_return 1 {} w 0 1",
        "stats 1 {} audio_duplex",
        "waiting 1 {} 0 9",
        "find 1 {} t",
    ),
]
ATTACKS_OF_WORKER = [
    f"FUNCTION LOAD REPLACE \"#!lua name={LIBRARY}\nredis.register_function('x', function() end)\"",
    *(f"FCALL {LIBRARY}_{call.replace('{}', POOL)}" for call in CALLS_OF_ADAPTER),
    *(f"FCALL {LIBRARY}_pools 1 {DIRECTORY}", f"UNSUBSCRIBE {POOL}w:x"),
    f"FCALL {shared.LIBRARY}_meet 1 {shared.PREFIX} a 3000 {{}} {{}}",
    f"FCALL {shared.LIBRARY}_list 1 {shared.PREFIX}",
    *(f"HGETALL {shared.PREFIX}total", f"DEL {shared.PREFIX}total"),
    f"SET {shared.PREFIX}rate:address:203.0.113.5 1",
    f"FCALL {usage.LIBRARY}_take 1 {usage.PREFIX} a 1 []",
    f"FCALL {usage.LIBRARY}_read_keys 1 {usage.PREFIX}",
    *(f"GET {usage.PREFIX}keys", f"SET {usage.PREFIX}keys x"),
    f"FCALL {link.LIBRARY}_claim 1 {link.PREFIX} s a - 1 n m p 1",
    *(f"HGET {link.PREFIX}session:s settings", f"XRANGE {link.PREFIX}stream:s - +"),
]
ATTACKS_OF_ADAPTER = [
    f"FCALL {LIBRARY}_worker_beat 1 {POOL} w evil:1 6000 1 9 0 0",
    f"FCALL {LIBRARY}_slot_free 1 {POOL} w 0 1",
    f"FCALL {LIBRARY}_worker_leave 1 {POOL} w",
    f"FCALL {LIBRARY}_announce 1 {DIRECTORY} pool 6000",
    f"FCALL {usage.LIBRARY}_write_keys 1 {usage.PREFIX} x",
]
ATTACKS = [
    *(("antiphon-adapter", attack) for attack in ATTACKS_OF_BOTH + ATTACKS_OF_ADAPTER),
    *(("antiphon-worker", attack) for attack in ATTACKS_OF_BOTH + ATTACKS_OF_WORKER),
]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisUsers]:
    """A server whose functions are loaded, as in operation."""
    users = RedisUsers.on(tmp_path_factory.mktemp("attacked"))
    with client(users, "antiphon-adapter") as adapter:
        assert adapter.function_load(DISPATCH.read_text(), replace=True) == LIBRARY
        assert adapter.function_load(PEERS.read_text(), replace=True) == shared.LIBRARY
    yield users
    users.server.stop()


@pytest.mark.parametrize(
    ("user", "attack"), ATTACKS, ids=[f"{user} {attack[:40]!r}" for user, attack in ATTACKS]
)
def test_redis_user_is_denied_commands_outside_its_permissions(
    attacked: RedisUsers, user: str, attack: str
) -> None:
    with client(attacked, user) as connected:
        with pytest.raises(ResponseError, match=r"permission|not allowed"):
            connected.execute_command(*shlex.split(attack))


def test_users_do_their_own_work(attacked: RedisUsers) -> None:
    with client(attacked, "antiphon-worker") as worker, client(attacked, "antiphon-adapter") as adapter:
        worker.execute_command("FCALL", f"{LIBRARY}_announce", 1, DIRECTORY, "pool", 6000)
        worker.execute_command("FCALL", f"{LIBRARY}_worker_beat", 1, POOL, "w", "h:1", 6000, 1, 2, 0, 0)
        stats = adapter.execute_command("FCALL", f"{LIBRARY}_stats", 1, POOL, "audio_duplex")
    assert '"id":"w"' in stats


async def test_adapters_count_their_clients_together_with_their_user(redis_users: RedisUsers) -> None:
    about = Peer("one", "0.1.0", "host", 1, 0.0)
    peers = shared.RedisPeers(connect(redis_users.adapter), "one", lambda: about, beat_s=0.05, ask_s=5.0)
    peers.start()
    try:
        first = await peers.admit([AdmissionRequest("address:203.0.113.5", 1, 60)])
        second = await peers.admit([AdmissionRequest("address:203.0.113.5", 1, 60)])
        await until_told(peers.all)
    finally:
        await peers.close()
    assert isinstance(first, Admitted)
    assert isinstance(second, Refused)


async def test_adapters_keep_and_take_journals_with_their_user(redis_users: RedisUsers) -> None:
    talk = Talk(1)
    links = [link.JournalLink(connect(redis_users.adapter, is_text=False)) for _ in range(2)]
    one, two = (SharedJournals(each, name, 30.0) for name, each in zip(("one", "two"), links, strict=True))
    one.start()
    two.start()
    try:
        await until_told(lambda: _are_open(links))
        stream = one.open("s", PATH, talk)
        for _ in range(10):
            talk.change()
            stream.commit()
        assert stream.hand_over()
        await until_told(lambda: _has_room(links))
        assert isinstance(await claim(two, talk), StoredJournal)
        two.give_up("s")
    finally:
        await one.close()
        await two.close()


async def _are_open(links: list[link.JournalLink]) -> bool:
    return all(each.is_open for each in links)


async def _has_room(links: list[link.JournalLink]) -> bool:
    return not any(each.unanswered_bytes for each in links)


def test_documented_commands_fill_in_the_passwords(tmp_path: Path) -> None:
    page = (ROOT / "docs/operations.md").read_text()
    block = page.partition("### The users of Redis")[2].split("```")[1].strip()
    *lines, start = block.splitlines()
    assert start.startswith("redis-server ")
    for role in ("adapter", "worker"):
        (tmp_path / role).mkdir()
        (tmp_path / role / "redis.password").write_text(PASSWORDS[f"antiphon-{role}"] + "\n")
    (tmp_path / "redis").mkdir()
    script = "\n".join(lines).replace("/etc/antiphon", str(tmp_path))
    subprocess.run(["sh", "-euc", script], check=True, cwd=ROOT)
    assert (tmp_path / "redis/users.acl").read_text() == acl_text()


def test_shipped_file_needs_its_passwords_and_so_do_callers(tmp_path: Path) -> None:
    acl, stolen = tmp_path / "users.acl", PASSWORDS["antiphon-adapter"]
    acl.write_text(ACL.read_text())
    server = RedisServer(tmp_path, f"aclfile {acl}")
    with pytest.raises(AssertionError, match=r"users\.acl:2.*password hash"):
        server.start()
    acl.write_text(acl_text())
    server.start()
    guesses = ((None, None), ("default", ""), ("antiphon-adapter", "guess"), ("antiphon-worker", stolen))
    try:
        for user, password in guesses:
            with Redis(unix_socket_path=str(server.socket), username=user, password=password) as stranger:
                with pytest.raises((AuthenticationError, NoPermissionError, ResponseError)):
                    stranger.execute_command("FCALL", f"{LIBRARY}_stats", 1, POOL)
    finally:
        server.stop()
