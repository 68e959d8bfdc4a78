"""The one table of what is served. `/openapi.json` and the tests of who may call what are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from topics.api import (
    admin,
    append,
    diff,
    groups,
    history,
    lookups,
    probes,
    queues,
    routers,
    segments,
    staging,
    stats,
    topics,
    watch,
    websocket,
    work,
)
from topics.api.auth import NO_SCOPE, Scope
from topics.api.call import Handler
from topics.api.shapes import AckOut, AppendOut, ClaimOut, DiffOut, ExtendOut, KeyOut, NackOut, RecordsOut
from topics.api.wire import (
    AckIn,
    AppendIn,
    ClaimIn,
    DeleteIn,
    DiffIn,
    ExtendIn,
    FetchIn,
    GroupAckIn,
    GroupClaimIn,
    GroupCommitIn,
    GroupExtendIn,
    GroupIn,
    GroupNackIn,
    HeadsIn,
    JoinIn,
    MemberIn,
    NackIn,
    PlanIn,
    RedriveIn,
    RejectIn,
    RouterIn,
    SeekIn,
    StageCommitIn,
    StageCommitsIn,
    WatchIn,
)
from topics.broker.broker import Deleted
from topics.broker.group import Sought
from topics.broker.groupinfo import GroupState
from topics.broker.lookups import At, RetentionPlan
from topics.broker.segments import SegmentList
from topics.broker.staging import StageState
from topics.broker.state import TopicState
from topics.model import limits
from topics.model.config import TopicConfig
from topics.model.job import Redriven


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    """Segments in braces are names."""
    scope: Scope
    handler: Handler | None
    """None: the app answers it itself, ready or not."""
    summary: str
    body: type[msgspec.Struct] | None = None
    """The JSON body it takes; None = no body."""
    bulk: bool = False
    """It takes lines of JSON and Arrow streams too."""
    query: tuple[str, ...] = ()
    answer: type[msgspec.Struct] | None = None
    """What its 200 looks like, without the performance block; None = described in words only."""
    kinds: tuple[str, ...] = ("application/json",)
    """Content types of its answer."""
    probe: bool = False
    """Served without a key unless configured otherwise."""
    page: bool = False
    """A file of the built-in page. It holds no data, so where only this machine can ask it needs no key."""
    query_token: bool = False
    """Its key may come as `?token=` too."""
    body_bytes_max: int | None = None
    """Its own ceiling for the body; None = that of the server."""
    by_session: bool = False
    """Who may have it is for its handler to say; a HEAD needs a key as elsewhere."""


READ, WRITE, DELETE, ADMIN = Scope.READ, Scope.WRITE, Scope.DELETE, Scope.ADMIN

TOPIC: Final = "/v0/topics/{topic}"
ROUTER: Final = "/v0/routers/{router}"
STAGED: Final = f"{TOPIC}/staged/{{txn}}"
GROUP: Final = f"{TOPIC}/groups/{{group}}"

ROUTES: Final = (
    Route("GET", "/v0/health", NO_SCOPE, None, "Is the process alive", answer=probes.Health, probe=True),
    Route("GET", "/healthz", NO_SCOPE, None, "The same as /v0/health", answer=probes.Health, probe=True),
    Route("GET", "/v0/ready", NO_SCOPE, probes.ready, "Has recovery ended", answer=probes.Ready, probe=True),
    Route("GET", "/readyz", NO_SCOPE, probes.ready, "The same as /v0/ready", answer=probes.Ready, probe=True),
    Route(
        "GET", "/v0/metrics", READ, None, "Metrics, as Prometheus text or as JSON by Accept",
        kinds=("text/plain", "application/json"),
    ),
    Route("GET", "/openapi.json", NO_SCOPE, None, "This description"),
    Route("GET", "/", READ, None, "A page to look at", kinds=("text/html",), page=True),
    Route("GET", "/console/page.css", READ, None, "How the page looks", kinds=("text/css",), page=True),
    Route("GET", "/console/page.js", READ, None, "What the page does", kinds=("text/javascript",), page=True),
    Route(
        "POST", "/v0/heads", READ, lookups.heads, "Where topics stand, at one instant",
        body=HeadsIn, answer=lookups.Heads,
    ),
    Route(
        "POST", "/v0/admin/checkpoint", ADMIN, admin.checkpoint, "Copy the WAL into segments now",
        answer=admin.Checkpointed,
    ),
    Route(
        "POST", "/v0/admin/snapshot", ADMIN, admin.snapshot, "Write a snapshot now", answer=admin.Snapshotted,
    ),
    Route(
        "POST", "/v0/admin/scrub", ADMIN, admin.scrub, "Read every sealed record and name those that are damaged",
        query=("topic",), answer=admin.Scrubbed,
    ),
    Route(
        "GET", "/v0/stats", READ, stats.stats, "How fast topics grow, and how quick the disk is",
        query=("prefix", "limit"), answer=stats.Stats,
    ),
    Route(
        "GET", "/v0/topics", READ, topics.list_topics, "List topics in pages",
        query=("prefix", "page_size", "cursor", "touch"), answer=topics.TopicList,
    ),
    Route(
        "PUT", TOPIC, ADMIN, topics.put_topic, "Create a topic, or replace its config",
        body=TopicConfig, answer=topics.Configured,
    ),
    Route(
        "PATCH", TOPIC, ADMIN, topics.patch_topic, "Change some fields of a topic's config",
        body=TopicConfig, answer=topics.Configured,
    ),
    Route("GET", TOPIC, READ, topics.get_topic, "The state of a topic", query=("touch",), answer=TopicState),
    Route(
        "DELETE", TOPIC, DELETE, topics.drop_topic, "Drop a topic and all its records",
        query=("if_empty",), answer=topics.Dropped,
    ),
    Route(
        "POST", TOPIC, WRITE, append.append, "Append a batch of records",
        body=AppendIn, bulk=True, query=("return_seqs", "idempotency_key", "node", "create"), answer=AppendOut,
    ),
    Route(
        "POST", f"{TOPIC}/diff", READ, diff.diff, "Read records after a cursor, or wait for them",
        body=DiffIn, answer=DiffOut,
    ),
    Route(
        "GET", f"{TOPIC}/records", READ, history.records, "The past of a topic: a page, or a stream by Accept",
        query=("from_seq", "to_seq", "from_ts", "to_ts", "tag", "node", "key", "limit", "include", "epoch"),
        kinds=("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"), answer=RecordsOut,
    ),
    Route(
        "GET", f"{TOPIC}/at", READ, lookups.at, "The first record at or after a time", query=("ts",), answer=At
    ),
    Route(
        "GET", f"{TOPIC}/keys/{{key}}", READ, lookups.key, "The newest record of a key, or all that have it",
        query=("history", "limit", "from_seq", "include"), answer=KeyOut,
    ),
    Route(
        "GET", f"{TOPIC}/tags", READ, lookups.tags, "Records by tag, in seq order",
        query=("match", "from_seq", "limit", "include"), answer=RecordsOut,
    ),
    Route(
        "GET", f"{TOPIC}/tags/names", READ, lookups.tag_names, "Distinct tags and how many records carry each",
        query=("prefix", "limit"), answer=lookups.TagNames,
    ),
    Route(
        "GET", f"{TOPIC}/segments", READ, segments.list_segments, "The files of a topic",
        query=("from_seq", "to_seq"), answer=SegmentList,
    ),
    Route(
        "GET", f"{TOPIC}/segments/{{first_seq}}/{{part}}", READ, segments.segment_part, "Bytes of a segment, by Range",
        kinds=("application/octet-stream",),
    ),
    Route(
        "PUT", f"{STAGED}/{{part}}", WRITE, staging.put_part, "Stage one part: durable, and visible to nobody",
        body=AppendIn, bulk=True, query=("create", "node"), answer=staging.PartStored,
        body_bytes_max=limits.PART_BYTES,
    ),
    Route(
        "POST", f"{STAGED}/commit", WRITE, staging.commit, "Append staged parts, all at once",
        body=StageCommitIn, answer=staging.CommitOut,
    ),
    Route(
        "POST", "/v0/staged/{txn}/commit", WRITE, staging.commit_topics, "Append staged parts to several topics",
        body=StageCommitsIn, answer=staging.CommitsOut,
    ),
    Route(
        "GET", f"{TOPIC}/staged", WRITE, staging.list_stages, "Transactions of a topic: open ones and committed ones",
        query=("prefix", "page_size", "cursor"), answer=staging.StageList,
    ),
    Route("GET", STAGED, WRITE, staging.get_stage, "One transaction of a topic", answer=StageState),
    Route(
        "DELETE", STAGED, WRITE, staging.abort, "Drop the parts of an open transaction", answer=staging.Aborted,
    ),
    Route(
        "POST", f"{TOPIC}/retention/plan", READ, lookups.retention_plan, "What a change of retention would remove",
        body=PlanIn, answer=RetentionPlan,
    ),
    Route(
        "POST", f"{TOPIC}/delete", DELETE, diff.delete, "Delete records by seq or tag", body=DeleteIn, answer=Deleted
    ),
    Route(
        "POST", f"{TOPIC}/claim", READ | WRITE, queues.claim, "Lease jobs of a queue, at most 8 MiB of them",
        body=ClaimIn, answer=ClaimOut,
    ),
    Route("POST", f"{TOPIC}/ack", WRITE, queues.ack, "Done with jobs: they are deleted", body=AckIn, answer=AckOut),
    Route("POST", f"{TOPIC}/nack", WRITE, queues.nack, "Give jobs back, now or later", body=NackIn, answer=NackOut),
    Route("POST", f"{TOPIC}/extend", WRITE, queues.extend, "Hold jobs for longer", body=ExtendIn, answer=ExtendOut),
    Route(
        "GET", f"{TOPIC}/work", READ | WRITE, work.work, "Jobs as they come, as server-sent events, each under a lease",
        query=("node", "max", "lease_ms", "token"), kinds=("text/event-stream",), query_token=True,
    ),
    Route(
        "POST", f"{TOPIC}/redrive", WRITE | DELETE, queues.redrive, "Send dead letters back to their queue",
        body=RedriveIn, answer=Redriven,
    ),
    Route(
        "GET", f"{TOPIC}/groups", READ, groups.list_groups, "The consumer groups of a topic, in pages",
        query=("prefix", "page_size", "cursor"), answer=groups.GroupList,
    ),
    Route(
        "PUT", GROUP, ADMIN, groups.put_group, "Create a consumer group, or replace its config",
        body=GroupIn, answer=groups.GroupConfigured,
    ),
    Route("GET", GROUP, READ, groups.get_group, "How far a group got, and how far it is behind", answer=GroupState),
    Route("DELETE", GROUP, DELETE, groups.drop_group, "Drop a group; the records stay", answer=groups.GroupDropped),
    Route(
        "POST", f"{GROUP}/join", READ | WRITE, groups.join, "Become a member, or one of a new generation",
        body=JoinIn, answer=groups.Joined,
    ),
    Route(
        "POST", f"{GROUP}/leave", READ | WRITE, groups.leave, "Stop being a member: what it holds is free",
        body=MemberIn, answer=groups.Generation,
    ),
    Route(
        "POST", f"{GROUP}/heartbeat", READ | WRITE, groups.heartbeat, "Say that a member is alive",
        body=MemberIn, answer=groups.Generation,
    ),
    Route("POST", f"{GROUP}/fetch", READ | WRITE, groups.fetch, "The next records for a member", body=FetchIn),
    Route(
        "POST", f"{GROUP}/commit", READ | WRITE, groups.commit, "How far a stream group got",
        body=GroupCommitIn, answer=groups.Committed,
    ),
    Route(
        "POST", f"{GROUP}/ack", READ | WRITE, groups.ack, "Done with records: settled for this group",
        body=GroupAckIn, answer=groups.GroupAckOut,
    ),
    Route(
        "POST", f"{GROUP}/nack", READ | WRITE, groups.nack, "Give records back, now or later",
        body=GroupNackIn, answer=groups.GroupNackOut,
    ),
    Route(
        "POST", f"{GROUP}/reject", READ | WRITE, groups.reject, "Send records to the dead letters",
        body=RejectIn, answer=groups.RejectOut,
    ),
    Route(
        "POST", f"{GROUP}/extend", READ | WRITE, groups.extend, "Hold records for longer",
        body=GroupExtendIn, answer=groups.GroupExtendOut,
    ),
    Route(
        "POST", f"{GROUP}/claim", READ | WRITE, groups.claim, "Take over what other members left idle",
        body=GroupClaimIn,
    ),
    Route(
        "GET", f"{GROUP}/pending", READ, groups.pending, "What was handed out and is not settled",
        query=("member", "min_idle_ms", "parked", "limit", "cursor"), answer=groups.PendingList,
    ),
    Route(
        "POST", f"{GROUP}/seek", READ | WRITE, groups.seek, "Begin anew somewhere else",
        body=SeekIn, answer=Sought,
    ),
    Route(
        "GET", "/v0/routers", READ, routers.list_routers, "List routers in pages",
        query=("prefix", "source", "dest", "page_size", "cursor"), answer=routers.RouterList,
    ),
    Route(
        "PUT", ROUTER, ADMIN, routers.put_router, "Create a router, or replace its options",
        body=RouterIn, answer=routers.RouterConfigured,
    ),
    Route("GET", ROUTER, READ, routers.get_router, "A router and how much it copied", answer=routers.RouterState),
    Route(
        "DELETE", ROUTER, DELETE, routers.drop_router, "Drop a router; what it copied stays",
        answer=routers.RouterDropped,
    ),
    Route(
        "POST", "/v0/watch", READ, watch.open_session, "Open a watch session on some topics",
        body=WatchIn, query=("lenient",), answer=watch.Watched,
    ),
    Route(
        "GET", "/v0/watch/{wid}", NO_SCOPE, watch.stream, "The stream of a watch session, as server-sent events",
        query=("token",), kinds=("text/event-stream",), by_session=True,
    ),
    Route(
        "GET", "/v0/ws", NO_SCOPE, websocket.websocket, "A WebSocket: subscribe, unsubscribe, publish, ping",
        kinds=("text/plain",),
    ),
)  # fmt: skip


@dataclass(slots=True)
class Node:
    """A place in the tree of paths."""

    fixed: dict[str, Node] = field(default_factory=dict)
    name: Node | None = None
    """Where a segment may be any name."""
    methods: dict[str, Route] = field(default_factory=dict)

    def allow(self) -> str:
        words = []
        for method in ("GET", "PUT", "POST", "PATCH", "DELETE"):
            if method in self.methods:
                words.append("GET,HEAD" if method == "GET" else method)
        return ",".join(words)


def make_tree(routes: tuple[Route, ...]) -> Node:
    root = Node()
    for route in routes:
        node = root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                node.name = node.name or Node()
                node = node.name
            else:
                node = node.fixed.setdefault(segment, Node())
        assert route.method not in node.methods, f"{route.method} {route.path} is listed twice"
        node.methods[route.method] = route
    return root


TREE: Final = make_tree(ROUTES)


def find(segments: list[str], method: str = "") -> tuple[Node | None, tuple[str, ...]]:
    """The place of a path given by its raw segments, and the raw segments that are names in it. A last segment that is
    a word of ours is a name all the same where only names take `method`."""
    node = TREE
    names: list[str] = []
    last = len(segments) - 1
    for at, segment in enumerate(segments):
        following = node.fixed.get(segment)
        named = node.name
        if following is not None and at == last and named is not None and method in named.methods:
            following = following if method in following.methods else None
        if following is None:
            following = node.name
            if following is None or not segment:
                return None, ()
            names.append(segment)
        node = following
    return (node, tuple(names)) if node.methods else (None, ())


def scope_of(segments: list[str], method: str, node: Node | None) -> Scope:
    """What a key needs for a request, whether or not it will find anything."""
    place = segments[:2]
    if place == ["v0", "topics"] or place == ["v0", "routers"]:
        if len(segments) == 2:
            return READ
        listed = node.methods.get(method) if node is not None else None
        if listed is not None:
            return listed.scope
        return WRITE if place[1] == "topics" else ADMIN
    if node is None:
        return NO_SCOPE
    listed = node.methods.get("GET" if method == "HEAD" else method)
    if listed is None:
        return READ if segments == ["v0", "metrics"] else NO_SCOPE
    return listed.scope


def name_in(segments: list[str]) -> str | None:
    """The raw topic or router name that a key's prefixes are compared with."""
    if len(segments) > 2 and segments[0] == "v0" and segments[1] in ("topics", "routers"):
        return segments[2]
    return None
