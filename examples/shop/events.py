"""What happens in a shop: visits, carts, orders, payments, returns. One seed gives the same shop again.

The numbers are made up but behave like real ones: quiet nights and busy evenings, a few products that everybody wants
and many that nobody does, countries with their own hours, a campaign that doubles the traffic for an evening, and a
payment provider that has a bad hour and a half.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

COUNTRIES: Final = {"de": (0.34, 1), "fr": (0.22, 1), "gb": (0.18, 0), "us": (0.17, -6), "jp": (0.09, 8)}
"""Share of the visits, and hours ahead of UTC."""

PROVIDERS: Final = {"card": 0.55, "wallet": 0.30, "transfer": 0.15}
PRODUCTS: Final = 240
CATEGORIES: Final = ("coffee", "tea", "mugs", "grinders", "books", "gifts")


@dataclass(frozen=True, slots=True)
class Event:
    topic: str
    at_ms: int
    """Time in the shop."""
    tag: str
    key: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Product:
    sku: str
    category: str
    price: float
    weight: float
    """How much people want it, against the others."""


@dataclass(slots=True)
class Shop:
    start_ms: int
    days: int = 3
    visits_per_day: int = 9_000
    seed: int = 7
    campaign_day: int = 1
    """Its evening has twice the visits."""
    trouble_day: int = 2
    """The day on which card payments fail from 17:30 to 19:00 UTC."""
    _random: random.Random = field(init=False)
    _products: list[Product] = field(init=False)
    _orders: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._products = [self._product(rank) for rank in range(PRODUCTS)]

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.days * DAY_MS

    def _product(self, rank: int) -> Product:
        draw = self._random
        price = round(math.exp(draw.gauss(2.9, 0.7)), 2)
        return Product(f"sku-{rank:03d}", draw.choice(CATEGORIES), max(price, 1.5), 1 / (rank + 1) ** 1.05)

    # -- traffic ------------------------------------------------------------------------------------------------------

    def busy(self, at_ms: int, hours_ahead: int) -> float:
        """How likely a visit starts now, against the busiest moment of an ordinary day: 0 to 2."""
        hour = (at_ms / HOUR_MS + hours_ahead) % 24
        evening = math.exp(-(((hour - 20) % 24 - 24 * ((hour - 20) % 24 > 12)) ** 2) / 14)
        noon = 0.55 * math.exp(-((hour - 12.5) ** 2) / 8)
        level = 0.06 + 0.94 * max(evening, noon)
        day = (at_ms - self.start_ms) // DAY_MS
        if day == self.campaign_day and 17 <= at_ms / HOUR_MS % 24 < 22:
            level *= 2
        return level

    def events(self) -> Iterator[Event]:
        """All of it in the order of shop time."""
        waiting: list[Event] = []
        for minute_ms in range(self.start_ms, self.end_ms, 60_000):
            for country, (share, ahead) in COUNTRIES.items():
                # The mean of `busy` over a day is about 0.4.
                expected = self.visits_per_day * share / 1440 * self.busy(minute_ms, ahead) / 0.4
                for _ in range(self._poisson(expected)):
                    waiting += self._visit(minute_ms + self._random.randrange(60_000), country)
            waiting.sort(key=lambda event: event.at_ms)
            due = next((i for i, event in enumerate(waiting) if event.at_ms >= minute_ms + 60_000), len(waiting))
            yield from waiting[:due]
            del waiting[:due]
        yield from (event for event in waiting if event.at_ms < self.end_ms)

    def _poisson(self, mean: float) -> int:
        limit, count, product = math.exp(-mean), 0, self._random.random()
        while product > limit:
            count += 1
            product *= self._random.random()
        return count

    # -- one visit ----------------------------------------------------------------------------------------------------

    def _visit(self, at_ms: int, country: str) -> list[Event]:
        draw = self._random
        customer = f"c{int(draw.paretovariate(0.9)) % 20_000:05d}"
        events = []
        cart: list[Product] = []
        views = 1 + self._poisson(2.2)
        for product in draw.choices(self._products, [p.weight for p in self._products], k=views):
            click = {"customer": customer, "sku": product.sku, "category": product.category}
            events.append(Event("shop.clicks", at_ms, country, customer, {"at": at_ms, "what": "view", **click}))
            at_ms += draw.randrange(3_000, 90_000)
            if draw.random() < 0.16:
                cart.append(product)
                events.append(Event("shop.clicks", at_ms, country, customer, {"at": at_ms, "what": "cart", **click}))
                at_ms += draw.randrange(2_000, 30_000)
        if cart and draw.random() < 0.62:
            events += self._order(at_ms, country, customer, cart)
        return events

    def _order(self, at_ms: int, country: str, customer: str, cart: list[Product]) -> list[Event]:
        draw = self._random
        self._orders += 1
        order = f"o{self._orders:06d}"
        total = round(sum(product.price for product in cart), 2)
        lines = [{"sku": product.sku, "price": product.price} for product in cart]
        data = {"at": at_ms, "order": order, "customer": customer, "country": country, "total": total, "lines": lines}
        events = [Event("shop.orders", at_ms, country, order, data)]
        provider = draw.choices(list(PROVIDERS), list(PROVIDERS.values()))[0]
        for attempt in range(1, 4):
            at_ms += draw.randrange(4_000, 40_000)
            paid = draw.random() >= self._failing(at_ms, provider)
            data = {
                "at": at_ms, "order": order, "provider": provider, "amount": total, "attempt": attempt, "paid": paid,
                "took_ms": round(draw.lognormvariate(5.2 if paid else 7.6, 0.5)),
            }  # fmt: skip
            events.append(Event("shop.payments", at_ms, provider, order, data))
            if paid:
                break
            if draw.random() < 0.4:
                break
        return events

    def _failing(self, at_ms: int, provider: str) -> float:
        """The chance that a payment fails now."""
        hour = at_ms / HOUR_MS % 24
        if provider == "card" and (at_ms - self.start_ms) // DAY_MS == self.trouble_day and 17.5 <= hour < 19:
            return 0.62
        return {"card": 0.035, "wallet": 0.02, "transfer": 0.06}[provider]
