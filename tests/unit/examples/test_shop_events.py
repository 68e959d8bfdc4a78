from __future__ import annotations

from collections import Counter

from examples.shop.events import DAY_MS, HOUR_MS, Shop

START_MS = 20_454 * DAY_MS


def shop(seed: int = 7) -> Shop:
    return Shop(START_MS, visits_per_day=2_000, seed=seed)


def test_one_seed_gives_the_same_shop_again() -> None:
    first, again, other = list(shop().events()), list(shop().events()), list(shop(8).events())
    assert first == again
    assert first != other


def test_events_come_in_the_order_of_shop_time() -> None:
    times = [event.at_ms for event in shop().events()]
    assert times == sorted(times)
    assert times[0] >= START_MS
    assert times[-1] < START_MS + 3 * DAY_MS


def test_every_payment_belongs_to_an_order_before_it() -> None:
    ordered: dict[str, float] = {}
    paid: Counter[str] = Counter()
    for event in shop().events():
        if event.topic == "shop.orders":
            assert event.key not in ordered
            ordered[event.key] = event.data["total"]
        elif event.topic == "shop.payments":
            assert event.data["amount"] == ordered[event.data["order"]]
            paid[event.key] += event.data["paid"]
    assert max(paid.values()) == 1


def test_campaign_and_trouble_can_be_seen_in_the_numbers() -> None:
    events = list(Shop(START_MS).events())
    evening = Counter((event.at_ms - START_MS) // DAY_MS for event in events if 17 <= event.at_ms / HOUR_MS % 24 < 22)
    assert evening[1] > 1.6 * max(evening[0], evening[2])
    cards = [event for event in events if event.topic == "shop.payments" and event.tag == "card"]
    bad = [17.5 <= event.at_ms / HOUR_MS % 24 < 19 and event.at_ms >= START_MS + 2 * DAY_MS for event in cards]
    failed = [sum(not e.data["paid"] for e, b in zip(cards, bad, strict=True) if b is when) for when in (True, False)]
    assert failed[0] / bad.count(True) > 0.4
    assert failed[1] / bad.count(False) < 0.08
