from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from examples.shop.events import DAY_MS, HOUR_MS, Shop
from examples.shop.report import Tables, steps, write_report

START_MS = 20_454 * DAY_MS
SHOP = Shop(START_MS, visits_per_day=500)


@pytest.fixture(scope="module")
def tables() -> Tables:
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in SHOP.events():
        rows[event.topic].append(event.data)
    clicks, orders, payments = (pd.DataFrame(rows[f"shop.{name}"]) for name in ("clicks", "orders", "payments"))
    revenue = orders.assign(hour=orders["at"] // HOUR_MS * HOUR_MS).groupby(["hour", "country"], as_index=False)
    sums = revenue.agg(revenue=("total", "sum"), orders=("total", "size"))
    for frame, column in ((clicks, "at"), (orders, "at"), (payments, "at"), (sums, "hour")):
        frame[column] = frame[column].astype("datetime64[ms]")
    return Tables(clicks, orders, payments, sums)


def test_steps_from_a_look_to_a_payment_count_products(tables: Tables) -> None:
    found = steps(tables)
    assert found["looked at"] + found["put into a cart"] == len(tables.clicks)
    assert found["ordered"] == sum(map(len, tables.orders["lines"])) > len(tables.orders)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_report_shows_every_plot_and_says_where_the_numbers_are_from(tables: Tables, tmp_path: Path) -> None:
    plots = write_report(tmp_path, SHOP, tables, {"events": "1 < 2"})
    page = (tmp_path / "index.html").read_text()
    for plot in plots:
        assert (tmp_path / plot.file).stat().st_size > 10_000
        assert f'src="{plot.file}"' in page
    assert "An invented shop" in page
    assert "1 &lt; 2" in page
