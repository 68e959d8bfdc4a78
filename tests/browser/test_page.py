"""The built-in page in a real browser, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.contract.http.live import ServerProcess
from topics.client import Client

pytestmark = [pytest.mark.realdisk, pytest.mark.xdist_group("browser")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    yield server
    server.stop()


def address(server: ServerProcess) -> str:
    return f"http://{server.host}:{server.port}"


def fill(server: ServerProcess, name: str, *values: object, token: str | None = None) -> None:
    with Client(address(server), token=token) as client:
        client.append(name, [{"data": value, "tag": "eu"} for value in values])


def test_empty_server_tells_a_newcomer_what_to_try(page: Page, server: ServerProcess) -> None:
    page.goto(address(server))
    expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#empty")).to_contain_text(f"curl -X POST {address(server)}/v0/topics/hello")
    expect(page.locator("[data-total=topics]")).to_have_text("0")


def test_topics_appear_grow_and_go(page: Page, server: ServerProcess) -> None:
    page.goto(address(server))
    fill(server, "orders", 1, 2, 3)
    fill(server, "audit", {"who": "ann"})
    names = page.locator("#topics td.name")
    expect(names).to_have_text(["audit", "orders"])
    orders = page.locator("#topics tr", has_text="orders").locator("td")
    expect(orders.nth(3)).to_have_text("3")
    fill(server, "orders", *range(9))
    expect(orders.nth(3)).to_have_text("12")
    expect(orders.nth(4)).to_have_text("12")
    expect(orders.nth(6)).to_have_text("0")
    page.locator("#filter").fill("au")
    expect(names).to_have_text(["audit"])
    page.locator("#filter").fill("")
    with Client(address(server)) as client:
        client.drop("audit")
    expect(names).to_have_text(["orders"])


def test_names_and_payloads_are_shown_as_text(page: Page, server: ServerProcess) -> None:
    fill(server, "t", "<img src=x onerror=alert(1)>")
    page.goto(address(server))
    page.get_by_role("button", name="t", exact=True).click()
    expect(page.locator("#records .data")).to_have_text('"<img src=x onerror=alert(1)>"')
    assert page.locator("img").count() == 0


def test_long_name_takes_one_line_and_long_record_is_opened_by_a_key(page: Page, server: ServerProcess) -> None:
    name = "long." * 50
    fill(server, name, {"text": "x" * 5000, "end": 1})
    page.goto(address(server))
    page.get_by_role("button", name=name).press("Enter")
    data = page.locator("#records .data")
    expect(data).to_contain_text("xxx")
    assert page.locator("#tail .bar").evaluate("bar => bar.clientHeight") < 60
    assert page.locator("#topics tr").evaluate("row => row.clientHeight") < 40
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#records li").press("Enter")
    expect(data).to_contain_text('"end": 1')
    page.locator("#records li").click()
    expect(data).not_to_contain_text('"end": 1')


def test_server_with_keys_asks_for_one_and_keeps_it_in_the_tab(page: Page, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, TOPICS_API_KEYS="all,look:r")
    try:
        fill(server, "secret", 1, token="all")
        page.goto(address(server))
        dialog = page.locator("#key")
        expect(dialog).to_be_visible()
        assert page.locator("#topics tr").count() == 0
        dialog.locator("input").fill("look")
        dialog.locator("button").click()
        expect(page.locator("#topics td.name")).to_have_text(["secret"])
        page.reload()
        expect(page.locator("#topics td.name")).to_have_text(["secret"])
        assert "look" not in server.complaints
    finally:
        server.stop()


def test_page_says_when_the_server_is_gone(page: Page, server: ServerProcess) -> None:
    page.goto(address(server))
    expect(page.locator("#state")).to_have_text("live")
    server.kill()
    expect(page.locator("#state")).to_have_text("the server does not answer")


def test_chosen_topic_is_shown_live(page: Page, server: ServerProcess) -> None:
    fill(server, "orders", {"id": 1}, "<b>bold</b>")
    page.goto(address(server))
    page.get_by_role("button", name="orders").click()
    items = page.locator("#records li")
    expect(items).to_have_count(2)
    expect(items.first).to_contain_text("<b>bold</b>")
    expect(page.locator("#tail-state")).to_have_text("watching")
    fill(server, "orders", {"id": 3})
    expect(items.first.locator(".data")).to_have_text('{"id":3}')
    expect(items.first.locator(".seq")).to_have_text("3")
    expect(items.first.locator(".tag")).to_have_text("eu")
    page.get_by_role("button", name="Pause").click()
    fill(server, "orders", "while paused")
    expect(page.locator("#pause")).to_have_text("Go on (1 new)")
    expect(items).to_have_count(3)
    page.get_by_role("button", name="Go on").click()
    expect(items.first).to_contain_text("while paused")
    fill(server, "orders", "seen")
    expect(items.first).to_contain_text("seen")
    expect(page.locator("[data-total=watchers]")).to_have_text("1")
    expect(page.locator("[data-total=pressure]")).to_have_text("0.00")
    with Client(address(server)) as client:
        client.drop("orders")
    expect(page.locator("#tail-state")).to_have_text("dropped")
    expect(items.first).to_have_text("the topic was dropped")


def test_tail_goes_on_without_a_record_twice_when_the_server_was_started_again(page: Page, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    fill(server, "orders", 1, 2, 3)
    page.goto(address(server))
    page.get_by_role("button", name="orders").click()
    seqs = page.locator("#records .seq")
    expect(seqs).to_have_text(["3", "2", "1"])
    server.kill()
    expect(page.locator("#tail-state")).to_have_text("the server does not answer")
    again = ServerProcess(tmp_path, TOPICS_PORT=str(server.port))
    try:
        fill(again, "orders", "after")
        expect(page.locator("#records .data").first).to_have_text('"after"')
        expect(seqs).to_have_count(4)
        # The crash made the head jump: what is in front of the jump is found all the same.
        again.kill()
        again = ServerProcess(tmp_path, TOPICS_PORT=str(server.port))
        page.reload()
        page.get_by_role("button", name="orders").click()
        expect(page.locator("#records .data").first).to_have_text('"after"')
    finally:
        again.stop()


def test_numbers_are_shown_as_they_were_sent(page: Page, server: ServerProcess) -> None:
    fill(server, "t", b'{"n":12345678901234567890,"f":1.10,"e":1e400}')
    page.goto(address(server))
    page.get_by_role("button", name="t", exact=True).click()
    expect(page.locator("#records .data")).to_have_text('{"n":12345678901234567890,"f":1.10,"e":1e400}')


def test_lost_records_are_shown_as_lost(page: Page, server: ServerProcess) -> None:
    with Client(address(server)) as client:
        client.create("small", cap_records=2)
    fill(server, "small", 1, 2, 3, 4, 5)
    page.goto(address(server))
    page.get_by_role("button", name="small").click()
    expect(page.locator("#records li.gap")).to_have_text("1 to 3 are gone: from_seq_too_old")
    expect(page.locator("#records li:not(.gap)")).to_have_count(2)
