"""Five plots and a page around them, from the history tables of the shop and the topic its stream writes."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates as dates
import matplotlib.pyplot as plt
import pandas as pd
from cycler import cycler
from matplotlib.ticker import FuncFormatter, PercentFormatter

from examples.shop.events import DAY_MS, HOUR_MS, Shop

COLOURS: Final = ("#0b6e63", "#e07a3f", "#4f6fae", "#c9a227", "#8a5a83", "#7b8794")
INK, SOFT = "#1d2126", "#667079"
SHADE = SOFT  # of no line, so that nobody takes a shaded time for one of them
NAMES: Final = {"de": "Germany", "fr": "France", "gb": "Britain", "us": "USA", "jp": "Japan"}
DAYS_NAMED: Final = 9
"""Names of so many days fit below a plot."""
DAYS_WITH_HOURS: Final = 4


@dataclass(frozen=True)
class Tables:
    """One frame per topic, with the fields of its payload as columns; `at` is shop time in UTC."""

    clicks: pd.DataFrame
    orders: pd.DataFrame
    payments: pd.DataFrame
    revenue: pd.DataFrame
    """`hour`, `country`, `revenue`, `orders`: what the stream wrote."""


@dataclass(frozen=True)
class Plot:
    file: str
    title: str
    look_at: str
    """What to see in it."""


def write_report(folder: Path, shop: Shop, tables: Tables, facts: dict[str, str]) -> list[Plot]:
    """The plots as PNG and `index.html`. `facts` are shown as they are, above the plots."""
    folder.mkdir(parents=True, exist_ok=True)
    style()
    plots = []
    drawers: list[Callable[[Any, Shop, Tables], Plot]] = [traffic, revenue, payments, products, funnel]
    for draw in drawers:
        figure, axes = new_figure()
        plot = draw(axes, shop, tables)
        axes.set_title(plot.title, loc="left", fontweight="bold")
        figure.savefig(folder / plot.file, dpi=130)
        plt.close(figure)
        plots.append(plot)
    (folder / "index.html").write_text(page(plots, facts), encoding="utf-8")
    return plots


def new_figure() -> tuple[Any, Any]:
    return plt.subplots(figsize=(9, 3.6), layout="constrained")


def style() -> None:
    plt.rcParams.update(
        {
            "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": SOFT,
            "axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "text.color": INK,
            "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e6e6e2", "axes.axisbelow": True,
            "legend.frameon": False, "axes.prop_cycle": cycler(color=COLOURS),
        }
    )  # fmt: skip


def time_axis(axes: Any, shop: Shop) -> None:
    """Days, as many as have room for their names, and hours where few days leave room for those, too."""
    axes.set_xlim(moment(shop.start_ms), moment(shop.end_ms))
    axes.set_xticks([moment(day(shop, number, 0)) for number in range(0, shop.days + 1, -(-shop.days // DAYS_NAMED))])
    axes.xaxis.set_major_formatter(dates.DateFormatter("%a %d %b"))
    if shop.days <= DAYS_WITH_HOURS:
        axes.xaxis.set_minor_locator(dates.HourLocator(byhour=(6, 12, 18)))
        axes.xaxis.set_minor_formatter(dates.DateFormatter("%H:%M"))
    axes.tick_params(axis="x", which="major", pad=14)
    axes.tick_params(axis="x", which="minor", labelsize=8)
    axes.annotate(
        "UTC", (1, 0), xycoords="axes fraction", xytext=(0, -5), textcoords="offset points", ha="center", va="top",
        fontsize=8, color=SOFT,
    )  # fmt: skip


def moment(ms: int) -> pd.Timestamp:
    return pd.Timestamp(ms, unit="ms")


def shade(axes: Any, start_ms: int, end_ms: int, text: str, after: bool = False) -> None:
    """A span of time with its name before or after it."""
    axes.axvspan(moment(start_ms), moment(end_ms), color=SHADE, alpha=0.16, lw=0)
    axes.annotate(
        text,
        (moment(end_ms if after else start_ms), 1),
        xycoords=("data", "axes fraction"),
        xytext=(4 if after else -4, -4),
        textcoords="offset points",
        ha="left" if after else "right",
        va="top",
        fontsize=9,
        color=SHADE,
    )


def day(shop: Shop, number: int, hour: float) -> int:
    return int(shop.start_ms + number * DAY_MS + hour * HOUR_MS)


def legend(axes: Any) -> None:
    """Beside the title, where no line can run through it."""
    axes.legend(
        ncols=8, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, fontsize=9, handlelength=1.2,
        handletextpad=0.5, columnspacing=1.4,
    )  # fmt: skip


def hourly(frame: pd.DataFrame) -> pd.Series:
    return middles(frame.set_index("at").resample("1h").size())


def middles(of_hours: pd.Series | pd.DataFrame) -> Any:
    """A line through the middle of each hour: at its beginning it would rise an hour too early."""
    return of_hours.set_axis(of_hours.index + pd.Timedelta("30min"))


def traffic(axes: Any, shop: Shop, tables: Tables) -> Plot:
    clicks = tables.clicks
    for what, label in (("view", "product views"), ("cart", "put into a cart")):
        series = hourly(clicks[clicks["what"] == what])
        axes.plot(series.index, series.values, label=label, lw=1.8)
    series = hourly(tables.orders)
    axes.plot(series.index, series.values, label="orders", lw=1.8)
    shade(axes, day(shop, shop.campaign_day, 17), day(shop, shop.campaign_day, 22), "campaign", after=True)
    axes.set_ylim(0)
    axes.set_ylabel("per hour")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    legend(axes)
    time_axis(axes, shop)
    return Plot("traffic.png", "Traffic", "the evenings, and the campaign that doubled one of them")


def revenue(axes: Any, shop: Shop, tables: Tables) -> Plot:
    wide = tables.revenue.pivot_table(index="hour", columns="country", values="revenue", aggfunc="sum").fillna(0)
    wide = middles(wide.asfreq("1h", fill_value=0))
    wide = wide[wide.sum().sort_values(ascending=False).index]
    axes.stackplot(wide.index, wide.to_numpy().T, labels=[NAMES[code] for code in wide.columns], alpha=0.9)
    axes.set_ylabel("per hour")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} €"))
    legend(axes)
    axes.set_ylim(0)
    time_axis(axes, shop)
    return Plot(
        "revenue.png",
        "Revenue by country, from the stream",
        "Japan and the USA are awake at other hours; the last two hours "
        "are not written yet, because orders of theirs might still come",
    )


def payments(axes: Any, shop: Shop, tables: Tables) -> Plot:
    """Numbers and not shares: of the few transfers at night a single one that fails would be a tenth."""
    failed = tables.payments[~tables.payments["paid"]]
    counts = failed.pivot_table(index="at", columns="provider", values="order", aggfunc="size").resample("30min").sum()
    for provider in counts.columns:
        axes.step(counts.index, counts[provider], where="post", label=provider, lw=1.6)
    shade(axes, day(shop, shop.trouble_day, 17.5), day(shop, shop.trouble_day, 19), "card provider in trouble")
    axes.set_ylim(0)
    axes.set_ylabel("per half hour")
    legend(axes)
    time_axis(axes, shop)
    return Plot("payments.png", "Failed payments by provider", "cards fail for an hour and a half, the others do not")


def products(axes: Any, shop: Shop, tables: Tables) -> Plot:
    lines = tables.orders["lines"].explode()
    bought = pd.DataFrame({"sku": lines.str["sku"], "price": lines.str["price"]})
    totals = bought.groupby("sku")["price"].sum().sort_values(ascending=False)
    top = totals.head(25)
    axes.bar(range(len(top)), top.to_numpy(), color=COLOURS[0])
    axes.set_xticks(range(len(top)), [str(sku).removeprefix("sku-") for sku in top.index], fontsize=8)
    axes.set_xlabel("numbers of the 25 products that sell best")
    axes.set_ylabel("ordered over all days")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f} €"))
    share = axes.twinx()
    share.plot(range(len(top)), (totals.cumsum() / totals.sum()).head(25).to_numpy(), color=COLOURS[1], marker=".")
    share.set_ylim(0, 1)
    share.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    share.grid(False)
    share.spines["right"].set_visible(False)
    share.set_ylabel("cumulative share of all sales", color=COLOURS[1])
    return Plot("products.png", "What sells", "a tenth of the products make most of the money")


def steps(tables: Tables) -> dict[str, int]:
    """How many products came how far; in products all the way, since an order may have several."""
    clicks = tables.clicks["what"].value_counts()
    sizes = tables.orders.set_index("order")["lines"].str.len()
    paid = tables.payments.loc[tables.payments["paid"], "order"]
    return {
        "looked at": int(clicks["view"]),
        "put into a cart": int(clicks["cart"]),
        "ordered": int(sizes.sum()),
        "paid": int(sizes[paid].sum()),
    }


def funnel(axes: Any, shop: Shop, tables: Tables) -> Plot:
    names, counts = zip(*steps(tables).items(), strict=True)
    axes.barh(names, counts, color=COLOURS[0], height=0.62)
    axes.invert_yaxis()
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    for row, (count, before) in enumerate(zip(counts, (None, *counts[:-1]), strict=True)):
        share = "" if before is None else f"   {count / before:.0%} of the step before"
        axes.annotate(f"{count:,}{share}", (count, row), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, counts[0] * 1.15)
    return Plot("funnel.png", "Products, from a look to a payment", "where customers are lost: before the cart")


def page(plots: list[Plot], facts: dict[str, str]) -> str:
    cells = [(html.escape(name), html.escape(value)) for name, value in facts.items()]
    rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells)
    figures = "".join(
        f'<figure><img src="{plot.file}" alt="{html.escape(plot.title)}"><figcaption>{html.escape(plot.look_at)}'
        "</figcaption></figure>"
        for plot in plots
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The shop</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: {INK}; background: #f7f7f5; }}
body {{ max-width: 900px; margin: 32px auto; padding: 0 16px; }}
figure {{ margin: 0 0 24px; padding: 12px; background: #fff; border: 1px solid #e2e3df; border-radius: 8px; }}
img {{ width: 100%; }} figcaption {{ color: {SOFT}; }}
table {{ margin-bottom: 24px; border-collapse: collapse; }}
th {{ text-align: left; font-weight: 500; color: {SOFT}; padding-right: 20px; }}
</style></head><body><h1>The shop</h1>
<p>An invented shop. Its events went into topics of a server; a Spark stream made the revenue of each hour and country
of them, into a topic again; and all four topics became the Delta tables that this page is drawn from.</p>
<table>{rows}</table>{figures}</body></html>
"""
