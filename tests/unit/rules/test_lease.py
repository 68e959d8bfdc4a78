from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from topics.rules.lease import Leases
from topics.rules.lease_columns import Packed, pack, unpack
from topics.rules.lease_values import Ask, Claimed, Entry, Extended, Kind, Released
from topics.rules.share import share
from topics.rules.tokens import AHEAD, Tokens


def claim(leases: Leases, holder: str, most: int, now: int, lease_ms: int = 100, live: int = 1000) -> list[int]:
    """Deal, and apply at once, with the seq as token plus a thousand for each delivery."""
    leases.sweep(now)
    grants = leases.deal([Ask(holder, most, lease_ms)], iter(range(leases.position, live + 1))).grants[0]
    rows = [Claimed(seq, seq + 1000 * count, now + lease_ms, count) for seq, count in grants]
    leases.apply_claimed(holder, rows, now, leases.position)
    return [seq for seq, _ in grants]


def test_a_lease_is_over_only_after_its_last_millisecond() -> None:
    leases = Leases()
    assert claim(leases, "a", 1, 0, 100, live=1) == [1]
    assert leases.judge(1, "a", None, 100) is None
    assert claim(leases, "b", 1, 100, live=1) == []
    assert leases.judge(1, "a", None, 101) == "expired"
    assert claim(leases, "b", 1, 101, live=1) == [1]


def test_a_delayed_record_is_ready_in_the_very_millisecond() -> None:
    leases = Leases()
    leases.apply_released([Released(1, 0, 50, 0)], 0)
    assert claim(leases, "a", 1, 49, live=1) == []
    assert claim(leases, "a", 1, 50, live=1) == [1]


def test_reclaimed_records_come_before_fresh_ones_and_lowest_first() -> None:
    leases = Leases()
    assert claim(leases, "a", 4, 0) == [1, 2, 3, 4]
    leases.apply_released([Released(3, 1003, 0, 1), Released(1, 1001, 0, 1)], 5)
    assert claim(leases, "b", 3, 6) == [1, 3, 5]
    assert leases.entries[3].deliveries == 2


def test_every_reason_for_refusing_has_its_name() -> None:
    leases = Leases()
    claim(leases, "a", 3, 0, live=3)
    leases.apply_settled([2])
    assert leases.judge(1, "b", None, 1) == "member"
    assert leases.judge(1, "a", 7, 1) == "token"
    assert leases.judge(2, "a", None, 1) == "settled"
    assert leases.judge(9, "a", None, 1) == "unknown"
    assert leases.judge(3, "a", None, 101) == "expired"
    leases.apply_released([Released(9, 0, 50, 0)], 1)
    assert leases.judge(9, "", 0, 1) == "unknown", "a delayed record that nobody was given yet"


def test_a_released_lease_is_no_longer_its_holders() -> None:
    leases = Leases()
    claim(leases, "a", 1, 0)
    leases.apply_released([Released(1, 1001, 0, 1)], 1)
    assert leases.judge(1, "a", 1001, 1) == "expired"


def test_extending_moves_the_deadline_and_counts_no_delivery() -> None:
    leases = Leases()
    claim(leases, "a", 1, 0)
    leases.apply_extended([Extended(1, 1001, 500)], 50)
    assert leases.sweep(500) == []
    assert leases.entries[1] == Entry(Kind.LEASED, "a", 1000, 500, 1, 0, 50)
    assert leases.sweep(501) == [(1, 1001)]


def test_events_of_an_old_token_change_nothing() -> None:
    leases = Leases()
    claim(leases, "a", 1, 0, 100)
    claim(leases, "b", 1, 200, 100)
    before = dict(leases.entries)
    leases.apply_released([Released(1, 1001, 0, 1)], 210)
    leases.apply_extended([Extended(1, 1001, 9999)], 210)
    leases.apply_claimed("a", [Claimed(1, 1001, 9999, 1)], 210)
    assert leases.entries == before


def test_a_cohort_is_dealt_one_at_a_time_in_arrival_order() -> None:
    leases = Leases()
    asks = [Ask(holder, 10, 100) for holder in "abcd"]
    deal = leases.deal(asks, iter(range(1, 21)))
    assert [[seq for seq, _ in hand] for hand in deal.grants] == [
        [1, 5, 9, 13, 17], [2, 6, 10, 14, 18], [3, 7, 11, 15, 19], [4, 8, 12, 16, 20],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "most", "owners"),
    [
        (5, [1, 3, 2], [0, 1, 2, 1, 2]),
        (4, [0, 9], [1, 1, 1, 1]),
        (9, [1, 1], [0, 1]),
        (2, [3, 3, 3], [0, 1]),
        (3, [], []),
    ],
)
def test_whoever_has_enough_is_passed_over(count: int, most: list[int], owners: list[int]) -> None:
    assert share(count, most) == owners


def test_a_record_handed_out_too_often_is_spent_and_the_deal_goes_on() -> None:
    leases = Leases()
    for now in (0, 200):
        assert claim(leases, "a", 1, now, live=1) == [1]
    leases.sweep(400)
    deal = leases.deal([Ask("a", 2, 100)], iter([2, 3]), max_deliveries=2)
    assert deal.spent == [1]
    assert [seq for seq, _ in deal.grants[0]] == [2, 3]
    leases.give_back(deal.spent, 400)
    assert leases.deal([Ask("a", 2, 100)], iter(()), max_deliveries=2).spent == [1]


def test_nobody_is_given_what_is_in_hand() -> None:
    leases = Leases()
    first = leases.deal([Ask("a", 2, 100)], iter([1, 2, 3])).grants[0]
    assert [seq for seq, _ in first] == [1, 2]
    assert [seq for seq, _ in leases.deal([Ask("b", 2, 100)], iter([3])).grants[0]] == [3]
    leases.give_back([1, 2], 10)
    assert [seq for seq, _ in leases.deal([Ask("b", 2, 100)], iter(())).grants[0]] == [1, 2]


def test_a_lease_in_hand_does_not_run_out_until_it_is_given_back() -> None:
    leases = Leases()
    claim(leases, "a", 1, 0, live=1)
    leases.hold([1], "an ack")
    assert leases.under_way(1) == "an ack"
    assert leases.sweep(1000) == []
    leases.give_back([1], 1000)
    assert leases.sweep(1000) == [(1, 1001)]


def test_a_cut_shows_fresh_records_in_hand_as_fresh() -> None:
    leases = Leases()
    claim(leases, "a", 2, 0)
    leases.deal([Ask("b", 2, 100)], iter([3, 4]))
    cut = leases.cut()
    assert (sorted(cut.entries), cut.position) == ([1, 2], 3)


def test_the_longest_idle_are_claimed_first_and_the_named_parked_ones_only() -> None:
    leases = Leases()
    claim(leases, "a", 2, 0, 10_000)
    claim(leases, "b", 2, 50, 10_000)
    leases.apply_extended([Extended(1, 1001, 10_060)], 60)
    leases.apply_parked([2])
    assert leases.oldest_ms() == 50
    deal = leases.deal_idle(Ask("c", 10, 100), 100, 50)
    assert [seq for seq, _ in deal.grants[0]] == [3, 4]
    assert leases.deal_idle(Ask("d", 10, 100), 100, 50).grants == [[]], "racing claimers never get the same one"
    named = leases.deal_idle(Ask("c", 10, 100), 100, 50, seqs=[1, 2, 99], max_deliveries=1)
    assert ([seq for seq, _ in named.grants[0]], named.spent) == ([2], [])
    leases.give_back([3, 4], 100)
    assert leases.deal_idle(Ask("d", 1, 100), 100, 40, max_deliveries=1).spent == [3, 4, 1]


def test_what_a_holder_has_is_known_and_forgotten_with_it() -> None:
    leases = Leases()
    claim(leases, "a", 2, 0)
    claim(leases, "b", 1, 0)
    assert leases.held_by("a") == [(1, 1001), (2, 1002)]
    assert leases.in_flight("a") == 2
    leases.apply_settled([1])
    assert [seqs for seqs, _ in leases.forget(2, 10**12)] == [[2], [3]]
    assert leases.held_by("a") == leases.held_by("b") == []
    assert leases.lowest() == leases.position == 4


def test_the_pending_are_listed_by_seq_in_pages() -> None:
    leases = Leases()
    claim(leases, "a", 3, 0)
    claim(leases, "b", 1, 10)
    leases.apply_released([Released(9, 0, 50, 0)], 10)
    assert [seq for seq, _ in leases.listing(20, limit=2)] == [1, 2]
    assert [seq for seq, _ in leases.listing(20, limit=9, after_seq=2)] == [3, 4]
    assert [seq for seq, _ in leases.listing(20, limit=9, holder="b")] == [4]
    assert [seq for seq, _ in leases.listing(20, limit=9, min_idle_ms=15)] == [1, 2, 3]


def test_a_restart_bridges_deadlines_by_the_logged_clock() -> None:
    leases = Leases()
    leases.apply_claimed("a", [Claimed(1, 1, 1_000_100, 1), Claimed(2, 2, 1_000_300, 1)], 1_000_000)
    leases.apply_released([Released(3, 0, 1_000_400, 0)], 1_000_000)
    leases.restart(1_000_200, 50, keep_leases=True)
    assert leases.entries[1].kind == Kind.READY
    assert (leases.entries[2].until, leases.entries[2].first_ms) == (150, -150)
    assert (leases.entries[3].kind, leases.entries[3].until) == (Kind.DELAYED, 250)
    leases.restart(50, 50, keep_leases=False)
    assert (leases.leased, leases.delayed) == (0, 1)
    assert leases.entries[2].deliveries == 1


def test_packed_columns_give_back_every_entry() -> None:
    leases = Leases()
    claim(leases, "a", 3000, 0, live=3000)
    claim(leases, "ö", 3000, 7, live=6000)
    leases.apply_released([Released(5, 1005, 90, 4)], 7)
    leases.apply_parked([6])
    packed = pack(leases.cut(), 1_000_000)
    back = unpack(packed)
    assert back.entries[6] == leases.entries[6]._replace(first_ms=1_000_000, last_ms=1_000_000)
    back.restart(1_000_007, 7, keep_leases=True)
    assert back.entries == leases.entries
    assert (back.position, back.tally) == (leases.position, leases.tally)


@pytest.mark.parametrize("columns", [b"x", pack(Leases(1).cut(), 0).columns + bytes(49)])
def test_columns_that_are_none_are_refused(columns: bytes) -> None:
    with pytest.raises(ValueError, match=r"rows|names what is not there"):
        unpack(Packed(1, [], columns))


def test_numbers_are_reserved_before_they_are_given_out() -> None:
    tokens = Tokens()
    assert not tokens.has(1)
    ceiling = tokens.wanted(1)
    assert ceiling == 1 + AHEAD
    tokens.ask(ceiling)
    assert tokens.wanted(1) is None, "one reservation at a time"
    tokens.refused()
    assert tokens.wanted(1) == ceiling
    tokens.ask(ceiling)
    tokens.apply_ceiling(ceiling)
    assert tokens.take(3) == 1
    assert tokens.take(1) == 4
    assert tokens.wanted(AHEAD // 2) is not None


def test_no_number_repeats_over_a_crash_and_none_is_wasted_by_a_clean_stop() -> None:
    tokens = Tokens()
    tokens.apply_ceiling(100)
    tokens.take(5)
    tokens.restart(6)
    assert tokens.take(1) == 6
    tokens.restart(None)
    assert tokens.next == 101
    assert not tokens.has(1)


def _calls(work: Callable[[], None]) -> int:
    """How many functions it calls, in Python and in C: what it costs, without a clock."""
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_what_no_longer_counts_does_not_pile_up() -> None:
    leases = Leases()
    for now in range(3000):
        seqs = claim(leases, "a", 8, now, 10**9, live=10**6)
        leases.apply_settled(seqs)
    assert len(leases._due) < 3000, "acked leases would have stayed until their deadlines"


def test_a_delivery_costs_the_same_however_much_is_pending() -> None:
    costs = []
    for pending in (100, 100_000):
        leases = Leases()
        claim(leases, "others", pending, 0, 10**6, live=pending)
        leases.lowest()
        leases.oldest_ms()

        def deliver(leases: Leases = leases, pending: int = pending) -> None:
            for now in range(1, 200):
                seqs = claim(leases, "me", 8, now, 10**6, live=pending + 2000)
                leases.deal_idle(Ask("me", 8, 100), now, 10**5)
                leases.apply_released([Released(seqs[0], seqs[0] + 1000, 0, 1)], now)
                leases.apply_settled(seqs[1:])
                leases.lowest()

        costs.append(_calls(deliver))
    assert costs[1] <= costs[0] * 1.2
