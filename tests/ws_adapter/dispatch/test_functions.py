"""The functions of the shared queue, on a real Redis whose clock the test turns."""

from collections.abc import Callable, Iterator

import pytest

from antiphon_service.redis import connect, disconnect
from tests.support.redis_server import RedisServer
from tests.ws_adapter.support.pool import SETTLE_MS, SOURCE, START_MS, TICKET_TTL, WORKER_TTL, Pool
from ws_adapter.dispatch.functions import Call, call_all

GRANT_MS = 10_000


@pytest.fixture
def pool(redis_server: RedisServer) -> Iterator[Pool]:
    pool = Pool(redis_server)
    yield pool
    pool.redis.close()


def granted(answer: list[object]) -> tuple[str, int, int]:
    """Worker, slot and epoch of an answer that is a grant."""
    word, worker, slot, epoch, _ = answer
    assert word == "granted"
    assert isinstance(worker, str)
    assert isinstance(slot, int)
    assert isinstance(epoch, int)
    return worker, slot, epoch


def attached(pool: Pool, ticket: str, slots: int = 1, **options: str) -> tuple[str, int, int]:
    """Worker `a`, slot and epoch of a session that it has begun."""
    pool.worker_beat("a", slots)
    lease = granted(pool.enqueue(ticket, **options))
    pool.worker_beat("a", slots, lease[1:])
    return lease


def alive(pool: Pool, ms: int, *beats: Callable[[], object]) -> None:
    """Time passes in which these beat once a second."""
    for _ in range(ms // 1000):
        pool.jump_ms(1000)
        for beat in beats:
            beat()


def test_library_loads_as_it_is_shipped_and_keeps_redis_own_time(pool: Pool) -> None:
    pool.redis.function_flush()
    pool.redis.flushall()
    assert pool.redis.function_load(SOURCE) == "antiphon_v1"
    seconds, _ = pool.redis.time()
    assert abs(pool.stats()["time"] / 1000 - seconds) < 60
    assert "'GET', 'now'" not in SOURCE


def test_load_calls_nothing_that_libraries_may_not(pool: Pool) -> None:
    """`pairs`, `redis.call` and their like are refused while a library loads, by some versions silently."""
    top_level = [line for line in SOURCE.splitlines() if line[:1] not in ("", " ", "-", "#", "}")]
    assert all(line.startswith(("local ", "end", "redis.register_function(")) for line in top_level)
    assert not any("pairs(" in line or "redis.call" in line for line in top_level)


def test_every_key_of_a_pool_has_its_hash_tag(pool: Pool) -> None:
    pool.worker_beat("a")
    pool.enqueue("t1")
    pool.enqueue("t2")
    assert {key for key in pool.redis.keys("*") if not key.startswith(pool.prefix)} == {"now"}


def test_enqueue_grants_free_slot_at_once_or_returns_position(pool: Pool) -> None:
    pool.worker_beat("a", target="10.0.0.1:50051")
    assert pool.enqueue("t0") == ["granted", "a", 0, 1, "10.0.0.1:50051"]
    assert pool.cancel("t0") == 0
    first, second = pool.enqueue("t1"), pool.enqueue("t2", most=2)
    assert [first[0], *first[2:]] == ["queued", 1, 1]
    assert [second[0], *second[2:]] == ["queued", 2, 2]
    assert second[1] == first[1] + 1
    assert pool.enqueue("t3", most=2) == ["full"]
    assert pool.beat("t3") == ["gone"]
    assert [pool.leave("t1"), pool.leave("t1")] == [1, 0]
    assert len(pool.leases("a")) == 1


def test_slot_that_was_freed_first_is_used_first(pool: Pool) -> None:
    pool.worker_beat("a", 3)
    leases = [granted(pool.enqueue(f"t{n}")) for n in range(3)]
    for index in (1, 2, 0):
        pool.jump_ms(1)
        pool.slot_free(*leases[index])

    again = [granted(pool.enqueue(f"u{n}"))[1] for n in range(3)]

    assert again == [leases[index][1] for index in (1, 2, 0)]


def test_lease_that_is_held_is_attached_and_ends_though_its_end_was_not_heard(pool: Pool) -> None:
    attached(pool, "t1")
    assert pool.leases("a") == {0: (1, "attached")}
    pool.enqueue("t2")

    pool.worker_beat("a")

    assert pool.beat("t2") == [["a", 0, 2, "a:1"]]


def test_slot_is_granted_again_only_when_its_worker_says_that_it_is_free(pool: Pool) -> None:
    worker, slot, epoch = attached(pool, "t1")
    pool.enqueue("t2")
    assert pool.lease_return(worker, slot, epoch) == 0
    assert pool.beat("t2") == [1]
    assert pool.slot_free(worker, slot, epoch) == 1
    assert pool.beat("t2") == [["a", 0, 2, "a:1"]]


def test_wrong_epoch_changes_nothing(pool: Pool) -> None:
    pool.worker_beat("a")
    worker, slot, epoch = granted(pool.enqueue("t1"))
    pool.enqueue("t2")
    before = {key: pool.redis.dump(key) for key in pool.redis.keys("*") if not key.endswith("clock")}
    for wrong in (epoch - 1, epoch + 1):
        assert pool.slot_free(worker, slot, wrong) == 0
        assert pool.lease_return(worker, slot, wrong) == 0
    assert pool.slot_free("nobody", 0, epoch) == 0
    assert pool.lease_return(worker, 7, epoch) == 0
    assert {key: pool.redis.dump(key) for key in pool.redis.keys("*") if not key.endswith("clock")} == before


def test_returning_ticket_is_queued_despite_full_queue(pool: Pool) -> None:
    seq = pool.enqueue("t1", most=1)[1]
    pool.leave("t1")
    pool.enqueue("t2", most=1)
    assert pool.enqueue("t1", most=1, prior=seq)[2:] == [1, 2]
    assert pool.enqueue("t3", most=1, prior="head")[2:] == [1, 3]


def test_tickets_after_worker_loss_go_to_queue_head_in_order(pool: Pool) -> None:
    pool.enqueue("t1")
    pool.enqueue("again1", prior="head")
    seq = pool.enqueue("again2", prior="head")[1]
    order = [ticket["ticket"] for ticket in pool.waiting()]
    assert order == ["again1", "again2", "t1"]
    pool.leave("again2")
    pool.enqueue("again3", prior="head")
    pool.enqueue("again2", prior=seq)
    assert [ticket["ticket"] for ticket in pool.waiting()] == ["again1", "again2", "again3", "t1"]


def test_asking_twice_changes_nothing(pool: Pool) -> None:
    """An adapter that did not get the answer asks again."""
    assert pool.enqueue("t1") == pool.enqueue("t1")
    pool.enqueue("t2")
    pool.worker_beat("a")
    assert granted(pool.enqueue("t1")) == granted(pool.enqueue("t1")) == ("a", 0, 1)
    assert [ticket["ticket"] for ticket in pool.waiting()] == ["t2"]
    assert pool.stats()["waiting"] == {"audio": 1}


def test_ticket_leaving_with_undelivered_grant_returns_slot(pool: Pool) -> None:
    pool.enqueue("t1")
    pool.enqueue("t2")
    pool.worker_beat("a")
    assert pool.leave("t1") == 1
    assert pool.beat("t2") == [1]
    assert pool.worker_beat("a") == [(0, 1)]
    pool.slot_free("a", 0, 1)
    assert pool.beat("t2") == [["a", 0, 2, "a:1"]]


def test_cancelled_ticket_is_reported_to_its_adapter_once(pool: Pool) -> None:
    pool.enqueue("t1", "other")
    pool.enqueue("t2")
    assert pool.cancel("t1") == 1
    assert pool.cancel("t1") == 0
    assert pool.beat("t2") == [1]
    assert pool.beat("t1", adapter="other") == ["cancelled"]
    assert pool.beat("t1", adapter="other") == ["gone"]
    assert pool.cancel("nobody") == 0


def test_beat_is_answered_after_the_pump(pool: Pool) -> None:
    """A prototype said `queued` to a ticket whose predecessor had just expired and whose slot was free."""
    pool.enqueue("t1", "dead")
    pool.enqueue("t2", "alive")
    alive(pool, 2000, lambda: pool.beat("t2", adapter="alive"))
    pool.jump_ms(1000)
    assert pool.beat("t2", adapter="alive") == [1]
    pool.worker_beat("a", accepting=0)
    pool.worker_beat("a", accepting=1)
    assert pool.beat("t2", adapter="alive") == [["a", 0, 1, "a:1"]]


def test_workers_with_random_names_leave_nothing_behind(pool: Pool) -> None:
    """A prototype kept a record of epochs for each slot that there had ever been."""
    before = pool.redis.dbsize()
    for number in range(20):
        worker, slot, epoch = f"w-{number:x}", 0, 0
        pool.worker_beat(worker, 2)
        worker, slot, epoch = granted(pool.enqueue(f"t{number}"))
        pool.worker_beat(worker, 2, (slot, epoch))
        if number % 2:
            pool.worker_leave(worker)
        else:
            alive(pool, WORKER_TTL, pool.stats)
    assert pool.keys() == set()
    assert pool.redis.dbsize() == before + 1  # the counter of epochs


def test_grant_that_is_not_attached_is_revoked_until_its_worker_frees_the_slot(pool: Pool) -> None:
    pool.worker_beat("a")
    worker, slot, epoch = granted(pool.enqueue("t1", "dead"))
    alive(pool, GRANT_MS - 1000, lambda: pool.worker_beat("a"))
    assert pool.leases("a") == {0: (1, "granted")}
    pool.jump_ms(1000)
    assert pool.worker_beat("a") == [(0, 1)]
    pool.enqueue("t2")
    assert pool.worker_beat("a") == [(0, 1)]
    assert pool.beat("t2") == [1]
    pool.slot_free(worker, slot, epoch)
    assert pool.beat("t2") == [["a", 0, 2, "a:1"]]


def test_redis_outage_expires_no_ticket_or_lease(pool: Pool) -> None:
    """Redis was away for five minutes, and came back with its data."""
    attached(pool, "t1")
    pool.enqueue("t2")
    pool.jump_ms(300_000)
    assert pool.beat("t2") == [1]
    assert pool.leases("a") == {0: (1, "attached")}


def test_clock_that_goes_back_stops_nothing(pool: Pool) -> None:
    """A replica on a machine with another clock took over."""
    pool.enqueue("t1", "dead")
    pool.jump_ms(-3_600_000)
    alive(pool, TICKET_TTL + 1000, pool.stats)
    assert pool.waiting() == []


def test_unknown_lease_reported_by_worker_is_adopted(pool: Pool) -> None:
    pool.worker_beat("a", 2, (1, 700))
    assert pool.leases("a") == {1: (700, "attached")}
    assert granted(pool.enqueue("t1")) == ("a", 0, 1701)
    assert pool.enqueue("t2")[0] == "queued"
    assert pool.slot_free("a", 1, 700) == 1
    assert pool.beat("t2") == [["a", 1, 1702, "a:1"]]


def test_worker_knows_better_than_an_older_record(pool: Pool) -> None:
    """Redis came back with what it had a while ago."""
    attached(pool, "t1")
    pool.worker_beat("a", 1, (0, 9))
    assert pool.leases("a") == {0: (9, "attached")}
    assert pool.slot_free("a", 0, 1) == 0


def test_word_that_is_older_than_a_grant_does_not_undo_it(pool: Pool) -> None:
    """The beat was written before its worker said that the slot is free, and came after that."""
    pool.worker_beat("a")
    pool.slot_free(*granted(pool.enqueue("t1")))
    lease = granted(pool.enqueue("t2"))
    pool.worker_beat("a", 1, (0, lease[2] - 1))
    assert pool.leases("a") == {0: (lease[2], "granted")}


def test_epoch_rises_above_what_workers_have_seen_and_stays_exact(pool: Pool) -> None:
    """A worker that served an adapter with a queue of its own has seen Unix milliseconds."""
    pool.worker_beat("a", 2, highest=41)
    assert granted(pool.enqueue("t1"))[2] == 1042
    pool.worker_beat("b", 1, highest=41)
    assert granted(pool.enqueue("t2"))[2] == 1043
    highest = 1_799_999_999_999
    pool.worker_beat("c", 1, highest=highest)
    worker, slot, epoch = granted(pool.enqueue("t3"))
    assert epoch == highest + 1001
    pool.worker_beat(worker, 2, (slot, epoch))
    assert pool.leases(worker)[slot] == (epoch, "attached")
    assert pool.slot_free(worker, slot, epoch) == 1


def test_empty_database_grants_nothing_before_old_tickets_could_return(redis_server: RedisServer) -> None:
    pool = Pool(redis_server, settled=False)
    pool.worker_beat("a")
    assert pool.enqueue("t1")[0] == "queued"
    alive(pool, SETTLE_MS - 1000, lambda: pool.beat("t1"), lambda: pool.worker_beat("a"))
    pool.jump_ms(999)
    assert pool.beat("t1") == [1]
    pool.jump_ms(1)
    assert pool.beat("t1") == [["a", 0, 1, "a:1"]]
    pool.redis.close()


def test_returning_tickets_in_empty_database_keep_order_before_new_ones(pool: Pool) -> None:
    seqs = {ticket: pool.enqueue(ticket)[1] for ticket in ("t1", "t2", "t3")}
    pool.jump_ms(5000)
    for key in pool.redis.keys(f"{pool.prefix}*"):
        pool.redis.delete(key)
    pool.enqueue("new")
    for ticket in ("t3", "t1", "t2"):
        pool.enqueue(ticket, prior=seqs[ticket])
    pool.enqueue("newer")
    assert [ticket["ticket"] for ticket in pool.waiting()] == ["t1", "t2", "t3", "new", "newer"]


def test_sessions_that_are_over_teach_their_length(pool: Pool) -> None:
    pool.worker_beat("a")
    for number, length in enumerate((10_000, 20_000)):
        worker, slot, epoch = granted(pool.enqueue(f"t{number}", kind="chat"))
        alive(pool, length, lambda lease=(slot, epoch): pool.worker_beat("a", 1, lease))
        pool.slot_free(worker, slot, epoch)
    unused = granted(pool.enqueue("t2"))
    pool.lease_return(*unused)
    pool.slot_free(*unused)
    assert pool.stats("chat", "audio")["means"] == {"chat": {"mean": 13_000, "samples": 2}}


def test_stats_contain_slots_leases_and_waiting_tickets(pool: Pool) -> None:
    pool.worker_beat("a", 2, target="10.0.0.1:1")
    worker, slot, epoch = granted(pool.enqueue("t1", kind="chat"))
    pool.worker_beat("a", 2, (slot, epoch), target="10.0.0.1:1", accepting=0)
    pool.jump_ms(1500)
    pool.enqueue("t2", kind="chat")
    pool.enqueue("t3", kind="audio")

    stats = pool.stats("chat")

    assert stats == {
        "time": START_MS + SETTLE_MS + 1500,
        "length": 2,
        "waiting": {"chat": 1, "audio": 1},
        "means": {},
        "workers": [
            {
                "id": worker,
                "target": "10.0.0.1:1",
                "accepting": False,
                "slots": 2,
                "free": 1,
                "load": 0.5,
                "revision": "stable",
                "leases": [{"slot": slot, "epoch": epoch, "state": "attached", "kind": "chat", "age": 1500}],
            }
        ],
    }


def test_waiting_lists_tickets_in_order_from_any_offset(pool: Pool) -> None:
    pool.enqueue("t1", "one", kind="chat", label="kitchen")
    pool.jump_ms(500)
    pool.enqueue("t2", "two", waited=4000)
    assert pool.waiting() == [
        {"ticket": "t1", "adapter": "one", "kind": "chat", "label": "kitchen", "waited": 500},
        {"ticket": "t2", "adapter": "two", "kind": "audio", "label": "", "waited": 4000},
    ]
    assert [ticket["ticket"] for ticket in pool.waiting(1, 1)] == ["t2"]
    assert [pool.find(ticket) for ticket in ("t1", "t2", "t3")] == [(1, "kitchen"), (2, ""), (0, "")]


def test_directory_has_the_pools_with_a_worker(pool: Pool) -> None:
    pool.directory("announce", "m/audio", 6000)
    pool.directory("announce", "n/chat", 3000)
    assert pool.directory("pools") == ["n/chat", "m/audio"]
    for _ in range(3):
        pool.jump_ms(1000)
        pool.directory("pools")
    assert pool.directory("pools") == ["m/audio"]


def test_adapters_and_workers_are_woken(pool: Pool) -> None:
    listener = pool.redis.pubsub()
    listener.psubscribe("antiphon:{*}:a:one")
    listener.subscribe(f"{pool.prefix}w:a")
    for _ in range(2):
        assert listener.get_message(timeout=30)["type"].endswith("subscribe")
    pool.enqueue("t1", "one")
    pool.worker_beat("a")
    pool.leave("t1")
    pool.enqueue("t2", "one")
    pool.cancel("t2")
    heard = [listener.get_message(timeout=30)["data"] for _ in range(3)]
    assert heard == ["granted t1", "revoked 0 1", "cancelled t2"]
    listener.close()


def test_thousands_of_tickets_of_one_adapter_beat_in_one_call(pool: Pool) -> None:
    tickets = [f"ticket_{number:012x}" for number in range(2500)]
    pipeline = pool.redis.pipeline()
    for ticket in tickets:
        pipeline.fcall("antiphon_v1_enqueue", 1, pool.prefix, ticket, "ad", 3000, "audio", 9999, 0)
    pipeline.execute()
    pool.jump_ms(2000)
    assert pool.beat(*tickets) == list(range(1, 2501))
    pool.jump_ms(2000)
    assert pool.beat(tickets[-1]) == [2500]


def test_holder_gets_all_slots_of_a_pool_but_one_and_its_waiting_tickets_count(pool: Pool) -> None:
    pool.worker_beat("a", 2)
    pool.worker_beat("b", 1)
    for number in range(2):
        granted(pool.enqueue(f"t{number}", holder="h"))
    assert pool.enqueue("t2", holder="h") == ["limit", 2]
    granted(pool.enqueue("t3", holder="other"))
    for number in (4, 5):
        assert pool.enqueue(f"t{number}", holder="waits")[0] == "queued"
    assert pool.enqueue("t6", holder="waits") == ["limit", 2]
    assert pool.leave("t4") == 1
    assert pool.enqueue("t6", holder="waits")[0] == "queued"


@pytest.mark.parametrize(("slots", "said", "most"), [(1, 0, 1), (0, 0, 1), (5, 5, 5)])
def test_holder_slot_limit_is_given_slots_and_at_least_one(
    pool: Pool, slots: int, said: int, most: int
) -> None:
    if slots:
        pool.worker_beat("a", slots)
    for number in range(most):
        assert pool.enqueue(f"t{number}", holder="h", slots=said)[0] in ("granted", "queued")
    assert pool.enqueue("more", holder="h", slots=said) == ["limit", most]


def test_holder_attached_lease_counts_until_its_worker_says_that_the_slot_is_free(pool: Pool) -> None:
    worker, slot, epoch = attached(pool, "t0", 2, holder="h")
    pool.leave("t0")
    alive(pool, 60_000, lambda: pool.worker_beat("a", 2, (slot, epoch)))
    assert pool.enqueue("t1", holder="h") == ["limit", 1]
    pool.slot_free(worker, slot, epoch)
    granted(pool.enqueue("t1", holder="h"))


def test_unused_lease_leaves_holder_count_once_its_slot_is_free(pool: Pool) -> None:
    pool.worker_beat("a", 2)
    worker, slot, epoch = granted(pool.enqueue("t0", holder="h"))
    pool.lease_return(worker, slot, epoch)
    assert pool.enqueue("t1", holder="h") == ["limit", 1], "its slot is not free yet"
    pool.slot_free(worker, slot, epoch)
    granted(pool.enqueue("t1", holder="h"))


def test_holder_count_goes_with_a_dead_worker_or_adapter(pool: Pool) -> None:
    pool.worker_beat("a", 2)
    granted(pool.enqueue("t0", holder="h"))
    granted(pool.enqueue("u0", holder="other"))
    pool.enqueue("t1", holder="waits")
    pool.pass_ms(WORKER_TTL + 1000)
    assert pool.keys() == set()


def test_holder_count_is_of_tickets_however_often_they_are_said(pool: Pool) -> None:
    """An answer may be lost, and Redis may forget a ticket that then comes again."""
    pool.worker_beat("a", 3)
    for _ in range(3):
        granted(pool.enqueue("t0", holder="h"))
    granted(pool.enqueue("t1", holder="h"))
    assert pool.redis.hgetall(f"{pool.prefix}held") == {"h": "2"}


def test_holder_count_goes_with_a_lease_that_a_later_one_replaced(pool: Pool) -> None:
    worker, slot, epoch = attached(pool, "t0", 2, holder="h")
    pool.worker_beat("a", 2, (slot, epoch + 7))
    pool.slot_free(worker, slot, epoch + 7)
    assert pool.redis.exists(f"{pool.prefix}held", f"{pool.prefix}holders") == 0


def test_cancelled_ticket_of_a_holder_counts_until_its_adapter_knows(pool: Pool) -> None:
    pool.enqueue("t0", holder="h")
    assert pool.cancel("t0") == 1
    assert pool.beat("t0") == ["cancelled"]
    assert pool.enqueue("t1", holder="h")[0] == "queued"


async def test_library_of_the_release_before_is_replaced_for_a_holder(redis_server: RedisServer) -> None:
    """Its functions are there: only one that it lacks has a newer library loaded."""
    pool = Pool(redis_server)
    added = [line for line in SOURCE.splitlines() if "enqueue_for'" in line]
    assert len(added) == 1
    pool.redis.function_load(SOURCE.replace(added[0], ""), replace=True)
    answers: list[object] = []
    arguments = ("t0", "ad", TICKET_TTL, "audio", 1000, 0, "", 0, "h", 0)
    client = connect(redis_server.url)
    try:
        await call_all(client, [Call("enqueue_for", pool.prefix, arguments, answers.append)])
    finally:
        await disconnect(client)
        pool.redis.close()
    assert [answer[0] for answer in answers if isinstance(answer, list)] == ["queued"]
