from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from examples.shop.events import DAY_MS, HOUR_MS, Shop
from examples.shop.report import Tables, hourly, new_figure, revenue, steps, style, write_report

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


@pytest.mark.parametrize("days", [3, 10, 40])
def test_words_of_a_plot_do_not_lie_upon_each_other(tables: Tables, days: int) -> None:
    style()
    figure, axes = new_figure()
    plot = revenue(axes, replace(SHOP, days=days), tables)  # the longest title beside the longest legend
    title = axes.set_title(plot.title, loc="left", fontweight="bold")
    figure.draw_without_rendering()
    names = [*axes.get_xticklabels(), *axes.get_xticklabels(minor=True)]
    words = [title, axes.get_legend(), *axes.texts, *(name for name in names if name.get_text())]
    assert len(words) >= 6
    for one, other in combinations(words, 2):
        assert not one.get_window_extent().overlaps(other.get_window_extent()), (one, other)


def test_an_hour_is_drawn_in_its_middle() -> None:
    counts = hourly(pd.DataFrame({"at": pd.to_datetime(["2026-01-01 17:00", "2026-01-01 17:59", "2026-01-01 18:00"])}))
    assert [(str(at), count) for at, count in counts.items()] == [
        ("2026-01-01 17:30:00", 2),
        ("2026-01-01 18:30:00", 1),
    ]
