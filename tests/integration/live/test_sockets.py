"""The WebSocket, message by message, with the client of the `websockets` library."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.contract.http.client import Api, eventually
from tests.contract.http.live import Http2, ServerProcess
from tests.integration.live.sse import Place


def dial(place: Place, **options: Any) -> connect:
    return connect(f"ws://{place.server.host}:{place.server.port}/v0/ws", ping_interval=None, max_size=None, **options)


def run(conversation: Any) -> None:
    uvloop.run(asyncio.wait_for(conversation, 120))


async def ask(socket: ClientConnection, message: Any) -> Any:
    await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(await socket.recv())


async def hear(socket: ClientConnection) -> Any:
    return json.loads(await socket.recv())


# What is sent stands behind `>`, what comes behind `<`; the t of a topic is dropped where it says so.
GOLDEN = """\
> {"op":"ping","request_id":{"a":[1]}}
< {"op":"pong","request_id":{"a":[1]}}
> {"op":"publish","topic":"p","records":[{"data":1},{"data":2,"node":"n"}],"request_id":"r1"}
< {"count":2,"created":true,"deduped":false,"first_seq":1,"head_seq":2,"last_seq":2,"op":"ack","performance":{…},"request_id":"r1","seqs":[1,2],"topic":"p"}
> {"op":"publish","topic":"p","records":[{"data":3}],"return_seqs":false}
< {"count":1,"created":false,"deduped":false,"first_seq":3,"head_seq":3,"last_seq":3,"op":"ack","performance":{…},"request_id":null,"seqs":null,"topic":"p"}
> {"op":"subscribe","topic":"p","from_seq":1,"request_id":9}
< {"op":"subscribed","request_id":9,"topics":{"p":{"earliest_seq":1,"from_seq":1,"head_seq":3}}}
< {"op":"record","topic":"p","from_seq":1,"to_seq":3,"head_seq":3,"records":[{"$node":"n","$seq":2,"$ts":0,"data":2},{"$seq":3,"$ts":0,"data":3}]}
< {"head_seq":3,"op":"caught_up","topic":"p"}
> {"op":"subscribe","topics":{"t":{}}}
< {"op":"subscribed","request_id":null,"topics":{"t":{"earliest_seq":3,"from_seq":0,"head_seq":4}}}
< {"earliest_seq":3,"gap_from":1,"gap_to":2,"head_seq":4,"op":"tombstone","reason":"cap","topic":"t"}
< {"op":"record","topic":"t","from_seq":0,"to_seq":4,"head_seq":4,"records":[{"$seq":3,"$ts":0,"data":3},{"$seq":4,"$ts":0,"data":4}]}
< {"head_seq":4,"op":"caught_up","topic":"t"}
> {"op":"unsubscribe","topic":"zz","topics":["p","zz"]}
< {"op":"unsubscribed","request_id":null,"topics":["p","zz","zz"]}
drop t
< {"head_seq":0,"op":"topic_deleted","reason":"deleted","topic":"t"}
> {"op":"subscribe","topic":"none","request_id":2}
< {"code":"topic_not_found","message":"…","op":"error","request_id":2}
> {"op":"nope","request_id":7}
< {"code":"invalid_json","message":"…","op":"error","request_id":null}
binary
< {"code":"unsupported_message","message":"…","op":"error"}
shutdown
< {"code":"server_shutting_down","message":"…","op":"error"}
"""  # noqa: E501


def normal(message: str) -> str:
    """Without what differs from run to run, the keys within `records` and `topics` in order."""
    message = re.sub(r'"performance":\{[^}]+\}', '"performance":{…}', message)
    message = re.sub(r'"message":"(?:[^"\\]|\\.)+"', '"message":"…"', message)
    for pattern in (r'"records":(\[\{.*\}\])', r'"topics":(\{"\w+":\{[^}]*\}\})'):
        found = re.search(pattern, message)
        if found is not None:
            inner = json.loads(re.sub(r'"\$ts":\d+', '"$ts":0', found.group(1)))
            text = json.dumps(inner, sort_keys=True, separators=(",", ":"))
            message = message.replace(found.group(1), text)
    return message


def test_whole_conversation_is_as_agreed(tmp_path: Path) -> None:
    place = Place(ServerProcess(tmp_path))
    place.api.put("t", cap_records=2)
    place.api.append("t", 1, 2, 3, 4)

    async def talk() -> list[str]:
        lines = []
        async with dial(place) as socket:
            for line in GOLDEN.splitlines():
                if line.startswith("> "):
                    await socket.send(line[2:])
                elif line == "binary":
                    await socket.send(b"\0")
                elif line == "drop t":
                    await asyncio.to_thread(place.api.call, "DELETE", "/v0/topics/t")
                elif line == "shutdown":
                    place.close()
                    stopping = asyncio.create_task(asyncio.to_thread(place.server.stop))
                else:
                    line = f"< {normal(str(await socket.recv()))}"
                lines.append(line)
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
            status, _, complaints = await stopping
            assert (status, complaints) == (0, "")
        return lines

    assert "\n".join(uvloop.run(asyncio.wait_for(talk(), 120))) + "\n" == GOLDEN


def test_only_a_proper_upgrade_opens_one(place: Place) -> None:
    answer = place.api.call("GET", "/v0/ws")
    assert answer.status == 400
    assert answer.headers["content-type"].startswith("text/plain")
    assert place.api.call("HEAD", "/v0/ws").status == 405
    assert Api(Http2(place.server.host, place.server.port)).call("GET", "/v0/ws").status == 405
    assert place.api.call("POST", "/v0/ws", {}).problem == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "message",
    [
        "{", "[]", '"ping"', "{}", '{"op":1}', '{"op":"publish","topic":"x"}',
        '{"op":"publish","records":[{"data":1}]}',
        '{"op":"publish","topic":"x","records":[{}]}', '{"op":"subscribe","topic":"x","from_seq":-1}',
        '{"op":"subscribe","topic":"x","from_seq":"1"}', '{"op":"subscribe","topic":1}',
        '{"op":"unsubscribe","topics":"x"}', '{"op":"subscribe","topics":{"x":{"from_seq":1.5}}}',
        '{"op":"ping","op":"ping"}', '{"op":"subscribe","topic":"x","topic":"x"}',
        '{"op":"subscribe","topics":{"x":{"tail":true,"tail":true}}}',
        '{"op":"publish","op":"publish","topic":"x","records":[{"data":1}]}',
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_said_and_closes_nothing(place: Place, message: str) -> None:
    async def talk() -> None:
        async with dial(place) as socket:
            answer = await ask(socket, message)
            assert (answer["op"], answer["code"], answer["request_id"]) == ("error", "invalid_json", None)
            assert answer["message"]
            assert (await ask(socket, {"op": "ping"}))["op"] == "pong"

    run(talk())


def test_requests_that_are_understood_and_wrong_name_themselves(place: Place) -> None:
    async def talk() -> None:
        async with dial(place) as socket:
            for message, code in (
                ({"op": "subscribe"}, "invalid_request"),
                ({"op": "unsubscribe"}, "invalid_request"),
                ({"op": "publish", "topic": "sock", "records": []}, "invalid_request"),
                ({"op": "publish", "topic": "not a name", "records": [{"data": 1}]}, "invalid_request"),
                ({"op": "publish", "topic": "absent", "records": [{"data": 1}], "create": False}, "topic_not_found"),
                ({"op": "subscribe", "topic": "absent"}, "topic_not_found"),
            ):
                answer = await ask(socket, {**message, "request_id": [code]})
                assert (answer["op"], answer["code"], answer["request_id"]) == ("error", code, [code])
            answer = await ask(socket, {"op": "subscribe", "topics": {"absent": {}}, "lenient": True})
            assert (answer["op"], answer["topics"]) == ("subscribed", {})

    run(talk())


def test_publishes_are_answered_in_the_order_they_came_whatever_each_waits_for(place: Place) -> None:
    async def talk() -> None:
        async with dial(place) as socket:
            for topic, durability in (("slow", "fsync"), ("quick", "ephemeral")):
                config = {"durability": durability}
                await ask(socket, {"op": "publish", "topic": topic, "records": [{"data": 0}], "config": config})
            asked = 0
            for _ in range(50):
                for topic in ("slow", "quick", "no such name!"):
                    message = {"op": "publish", "topic": topic, "records": [{"data": 1}], "request_id": asked}
                    await socket.send(json.dumps(message))
                    asked += 1
            await socket.send(json.dumps({"op": "ping", "request_id": asked}))
            heard = [await hear(socket) for _ in range(asked + 1)]
            assert [message["request_id"] for message in heard] == list(range(asked + 1))
            assert [message["op"] for message in heard] == ["ack", "ack", "error"] * 50 + ["pong"]

    run(talk())


def test_publisher_that_subscribes_sees_its_records_in_order(place: Place) -> None:
    async def talk() -> None:
        async with dial(place) as socket:
            await ask(socket, {"op": "publish", "topic": "loop", "records": [{"data": 0}]})
            assert (await ask(socket, {"op": "subscribe", "topic": "loop", "tail": True}))["op"] == "subscribed"
            assert (await hear(socket))["op"] == "caught_up"
            for number in range(200):
                message = {"op": "publish", "topic": "loop", "records": [{"data": number}], "request_id": number}
                await socket.send(json.dumps(message))
            acks: list[int] = []
            seqs: list[int] = []
            while len(acks) < 200 or len(seqs) < 200:
                message = await hear(socket)
                if message["op"] == "ack":
                    acks.append(message["first_seq"])
                    assert message["request_id"] == message["first_seq"] - 2
                elif message["op"] == "record":
                    seqs += [record["$seq"] for record in message["records"]]
            assert acks == seqs == list(range(2, 202))

    run(talk())


def test_publish_keeps_payloads_keys_and_the_promise_of_a_key(place: Place) -> None:
    async def talk() -> None:
        async with dial(place) as socket:
            record = '{"data": {"b" : 1.10, "a":[ 1E2 ]},"tag":"t"}'
            text = '{"op":"publish","topic":"kept","records":[%s],"idempotency_key":"k"}' % record  # noqa: UP031
            first = await ask(socket, text)
            again = await ask(socket, text)
            assert (first["deduped"], again["deduped"], again["first_seq"]) == (False, True, first["first_seq"])
            assert list(first["performance"]) == ["fsync_ms", "server_total_ms", "wal_append_ms"]
            assert list(again["performance"]) == ["server_total_ms"], "nothing was written"
            await socket.send(json.dumps({"op": "subscribe", "topic": "kept", "include_tags": True}))
            assert (await hear(socket))["op"] == "subscribed"
            raw = str(await socket.recv())
            assert '"data":{"b":1.10,"a":[1E2]}' in raw
            assert '"$tag":"t"' in raw

    run(talk())


def test_subscribing_again_replaces_and_unsubscribing_ends(place: Place) -> None:
    place.api.append("replaced", 1, 2, 3)

    async def talk() -> None:
        async with dial(place) as socket:
            await ask(socket, {"op": "subscribe", "topic": "replaced", "tail": True})
            assert (await hear(socket))["op"] == "caught_up"
            await ask(socket, {"op": "subscribe", "topic": "replaced", "from_seq": 1})
            assert [record["$seq"] for record in (await hear(socket))["records"]] == [2, 3]
            assert (await hear(socket))["op"] == "caught_up"
            await ask(socket, {"op": "unsubscribe", "topic": "replaced"})
            await asyncio.to_thread(place.api.append, "replaced", 4)
            assert (await ask(socket, {"op": "ping"}))["op"] == "pong"

    run(talk())


def test_slow_socket_holds_few_messages_and_misses_nothing(place: Place) -> None:
    place.api.put("slow-socket")

    async def talk() -> None:
        async with dial(place, max_queue=1) as socket:
            await ask(socket, {"op": "subscribe", "topic": "slow-socket"})
            before = await asyncio.to_thread(place.memory)
            for _ in range(60):
                await asyncio.to_thread(place.api.append, "slow-socket", "x" * 500_000)
            assert await asyncio.to_thread(eventually, lambda: place.metrics()["sse_lagging"] == 1)
            assert await asyncio.to_thread(place.memory) - before < 40 << 20
            seqs: list[int] = []
            while len(seqs) < 60:
                message = await hear(socket)
                if message["op"] == "record":
                    seqs += [record["$seq"] for record in message["records"]]
            assert seqs == list(range(1, 61))

    run(talk())


def test_scopes_prefixes_and_caps_hold_on_sockets_and_streams(tmp_path: Path) -> None:
    keys = "reader:r:mine.,writer:w,other:r,two"
    settings = {"TOPICS_API_KEYS": keys, "TOPICS_MAX_SSE_CONNECTIONS": "3", "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "2"}
    place = Place(ServerProcess(tmp_path, **settings, TOPICS_MAX_WATCH_SESSIONS="2"))
    api = {name: Api(place.api.wire, name) for name in ("reader", "writer", "other", "two")}
    api["two"].append("mine.a", 1)
    api["two"].append("theirs", 1)

    def as_key(name: str) -> Any:
        return dial(place, additional_headers={"authorization": f"Bearer {name}"})

    async def refused(name: str) -> int:
        with pytest.raises(InvalidStatus) as error:
            async with as_key(name):
                pass
        return error.value.response.status_code

    async def talk() -> None:
        assert await refused("nobody") == 401
        async with as_key("reader") as first, as_key("reader"):
            assert (await ask(first, {"op": "subscribe", "topic": "mine.a"}))["op"] == "subscribed"
            assert {(await hear(first))["op"], (await hear(first))["op"]} == {"record", "caught_up"}
            assert (await ask(first, {"op": "subscribe", "topic": "theirs"}))["code"] == "forbidden"
            publish = {"op": "publish", "topic": "mine.a", "records": [{"data": 1}]}
            assert (await ask(first, publish))["code"] == "forbidden"
            assert await refused("reader") == 429, "one key may have two"
            async with as_key("writer") as writer:
                assert (await ask(writer, publish))["op"] == "ack"
                assert (await ask(writer, {**publish, "config": {}}))["code"] == "forbidden"
                assert (await ask(writer, {"op": "subscribe", "topic": "mine.a"}))["code"] == "forbidden"
                assert await refused("other") == 429, "all together may have three"

    run(talk())
    watch: dict[str, Any] = {"topics": {"mine.a": {}}}
    as_json = {"accept": "application/json"}
    assert eventually(lambda: api["two"].call("GET", "/v0/metrics", headers=as_json).json["sse_connections"] == 0)
    assert api["writer"].call("POST", "/v0/watch", watch).problem == (403, "forbidden")
    answer = api["reader"].call("POST", "/v0/watch", {"topics": {"theirs": {}}})
    assert (answer.problem, answer.detail) == ((403, "forbidden"), {"topic": "theirs"})
    url = api["reader"].call("POST", "/v0/watch", watch).json["stream_url"]
    event_stream = {"accept": "text/event-stream"}
    for name in (None, "other", "nobody"):
        wrong = Api(place.api.wire, name).call("GET", url, headers=event_stream)
        assert wrong.problem == (401, "unauthorized")
    assert Api(place.api.wire, "reader").call("GET", url, headers={"accept": "text/html"}).problem[0] == 406
    assert Api(place.api.wire).call("GET", f"{url}?token=other&token=reader", headers={"accept": "x"}).status == 406
    with place.read(f"{url}?token=reader") as by_token:
        assert by_token.until("caught-up")
    assert api["reader"].call("POST", "/v0/watch", watch).status == 200
    full = api["reader"].call("POST", "/v0/watch", watch)
    assert (full.problem, full.detail) == ((429, "throttled"), {"limit": "max_watch_sessions", "max": 2})
    assert full.headers["retry-after"] == "1"
    place.close()
    assert place.server.stop()[0] == 0
