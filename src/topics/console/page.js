// A client of the public API: it lists topics once a second and watches the chosen one over server-sent events.

const EVERY_MS = 1000;
const MINUTE = 60;
const SHOWN_RECORDS = 200;
const FEW = 20; // records of the past that a chosen topic begins with
const SHOWN_TOPICS = 200;
const SHOWN_CHARS = 300; // of a record in its line
const OPENED_CHARS = 100000; // of a record that was opened

const find = (id) => document.getElementById(id);
const rows = new Map(); // name -> {row, cells, heads: [[ms, head]], rates: [number]}
let chosen = null;
let watching = null; // AbortController of the open watch
let paused = false;
let held = []; // what came while paused, the oldest first
let token = sessionStorage.getItem("topics-token") ?? "";

// -- talking to the server ------------------------------------------------------------------------------------------

async function call(method, path, body, more = {}) {
  const headers = { accept: "application/json", ...more.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, { ...more, method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  if (response.status === 401) {
    await askForKey();
    return call(method, path, body, more);
  }
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    const error = new Error(told.error?.message ?? told.message ?? `${response.status} ${response.statusText}`);
    error.status = response.status;
    throw error;
  }
  return response;
}

let asking = null;
function askForKey() {
  const dialog = find("key");
  asking ??= new Promise((done) => {
    dialog.addEventListener("close", () => {
      token = find("token").value.trim();
      sessionStorage.setItem("topics-token", token);
      asking = null;
      done();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

// -- the list ---------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (n) => (n < 100000 ? whole.format(n) : short.format(n));

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

function makeRow(name) {
  const row = document.createElement("tr");
  const cells = {};
  for (const what of ["name", "spark", "rate", "head", "live", "bytes", "sync", "lag"]) {
    cells[what] = row.insertCell();
    if (!["name", "spark"].includes(what)) cells[what].className = "n";
  }
  cells.name.className = "name";
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.title = name;
  cells.name.append(button);
  row.addEventListener("click", () => choose(name));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", `0 0 ${MINUTE} 18`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  cells.spark.append(svg);
  return { row, cells, line: svg.firstChild, last: null, rates: [] };
}

function showRow(entry, topic, head, now) {
  if (entry.last !== null && topic.head_seq >= entry.last.head) {
    entry.rates.push(((topic.head_seq - entry.last.head) * 1000) / Math.max(now - entry.last.at, 1));
    if (entry.rates.length > MINUTE) entry.rates.shift();
  }
  entry.last = { head: topic.head_seq, at: now };
  const rate = entry.rates.at(-1) ?? 0;
  const most = Math.max(...entry.rates, 1);
  const from = MINUTE - entry.rates.length;
  entry.line.setAttribute("d", entry.rates.map((r, i) => `${i ? "L" : "M"}${from + i} ${(17 - (r / most) * 15).toFixed(1)}`).join(""));
  const { cells } = entry;
  cells.rate.textContent = rate ? count(rate < 10 ? Number(rate.toFixed(1)) : Math.round(rate)) : "0";
  cells.head.textContent = count(topic.head_seq);
  cells.live.textContent = count(topic.count);
  cells.bytes.textContent = bytes(topic.bytes);
  const behind = head && head.durable_seq !== null ? Math.max(head.head_seq - head.durable_seq, 0) : null;
  cells.sync.textContent = behind === null ? "–" : count(behind);
  const lag = entry.groupLag;
  cells.lag.textContent = lag === undefined ? "–" : count(lag);
  cells.lag.classList.toggle("behind", lag > 0);
  return rate;
}

async function refresh() {
  const prefix = find("filter").value.trim();
  const [list, metrics] = await Promise.all([
    call("GET", `/v0/topics?page_size=${SHOWN_TOPICS}&prefix=${encodeURIComponent(prefix)}`).then((r) => r.json()),
    call("GET", "/v0/metrics").then((r) => r.json()),
  ]);
  const asked = Object.fromEntries(list.topics.map((topic) => [topic.topic, 0]));
  const heads = list.topics.length ? await call("POST", "/v0/heads", { topics: asked }).then((r) => r.json()) : { topics: {} };
  const now = performance.now();
  const body = find("topics");
  const seen = new Set();
  let rate = 0;
  for (const topic of list.topics) {
    const name = topic.topic;
    if (!rows.has(name)) rows.set(name, makeRow(name));
    const entry = rows.get(name);
    rate += showRow(entry, topic, heads.topics[name], now);
    entry.row.setAttribute("aria-selected", String(name === chosen));
    if (body.children[seen.size] !== entry.row) body.insertBefore(entry.row, body.children[seen.size] ?? null);
    seen.add(name);
  }
  for (const [name, entry] of rows) {
    if (!seen.has(name)) {
      entry.row.remove();
      rows.delete(name);
    }
  }
  const empty = find("empty");
  empty.hidden = list.topics.length > 0 && !list.next_cursor;
  empty.textContent = list.next_cursor
    ? `The first ${SHOWN_TOPICS} are shown; type the start of a name to see others.`
    : prefix ? "No topic starts so." : `No topic yet. Try: curl -X POST ${location.origin}/v0/topics/hello -H 'content-type: application/json' -d '{"records":[{"data":1}]}'`;
  const totals = {
    topics: count(metrics.topics),
    records: count(metrics.records_live),
    bytes: bytes(metrics.bytes_live),
    rate: `${count(Math.round(rate))}/s`,
    pressure: metrics.pressure === undefined ? "–" : metrics.pressure.toFixed(2),
    watchers: count(metrics.sse_connections ?? 0),
  };
  for (const [what, text] of Object.entries(totals)) document.querySelector(`[data-total=${what}]`).textContent = text;
}

async function refreshGroups() {
  // Groups are asked for one topic after the other, and only for those in sight: a page must not weigh on a server.
  for (const [name, entry] of [...rows].slice(0, 50)) {
    try {
      const told = await call("GET", `/v0/topics/${encodeURIComponent(name)}/groups`).then((r) => r.json());
      entry.groupLag = told.groups.length ? Math.max(...told.groups.map((group) => group.lag.records)) : undefined;
    } catch {
      entry.groupLag = undefined;
    }
  }
}

function tell(id, is, text) {
  const element = find(id);
  element.dataset.is = is;
  element.textContent = text;
}

async function listForEver() {
  for (let round = 0; ; round++) {
    try {
      if (!document.hidden) {
        await refresh();
        if (round % 5 === 0) await refreshGroups();
      }
      tell("state", "good", "live");
    } catch (error) {
      tell("state", error.status === 503 ? "wait" : "bad", error.status ? error.message : "the server does not answer");
    }
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}

// -- one topic, live ----------------------------------------------------------------------------------------------------

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = {};
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
      }
      if (event.event) yield event;
    }
  }
}

function add(items) {
  if (paused) {
    held = held.concat(items).slice(-SHOWN_RECORDS);
    find("pause").textContent = `Go on (${held.length}${held.length === SHOWN_RECORDS ? "+" : ""} new)`;
    return;
  }
  const list = find("records");
  list.prepend(...items.reverse());
  while (list.children.length > SHOWN_RECORDS) list.lastChild.remove();
}

function recordItem(record) {
  const item = document.createElement("li");
  const part = (kind, name, text) => {
    const element = document.createElement(kind);
    element.className = name;
    element.textContent = text;
    item.append(element);
    return element;
  };
  part("span", "seq", record.$seq);
  const time = part("time", "", new Date(record.$ts).toISOString().slice(11, 23));
  time.dateTime = new Date(record.$ts).toISOString();
  part("span", "tag", record.$tag ?? "");
  const text = JSON.stringify(record.data);
  const data = part("span", "data", text.slice(0, SHOWN_CHARS));
  const open = (wanted) => {
    item.setAttribute("aria-expanded", String(wanted));
    data.textContent = wanted ? JSON.stringify(record.data, null, 2).slice(0, OPENED_CHARS) : text.slice(0, SHOWN_CHARS);
  };
  open(false);
  item.tabIndex = 0;
  item.title = "the whole record";
  item.addEventListener("click", () => {
    if (getSelection().isCollapsed) open(item.getAttribute("aria-expanded") === "false"); // not when text is selected
  });
  item.addEventListener("keydown", (event) => {
    if (event.key === "Enter") open(item.getAttribute("aria-expanded") === "false");
  });
  return item;
}

function noteItem(text) {
  const item = document.createElement("li");
  item.className = "gap";
  item.textContent = text;
  return item;
}

function noteOf(gap) {
  // Its range is what the new topic holds, which is shown next: none at all where that is empty.
  if (gap.reason === "recreated" || gap.gap_to === 0) return "this is another topic than before, from its beginning";
  return `${gap.gap_from} to ${gap.gap_to} are gone: ${gap.reason}`;
}

// Where the last few records begin. Seqs may be skipped in front of the head, many of them after a crash.
async function lastFew(name, signal) {
  const head = rows.get(name)?.last?.head ?? 0;
  for (let back = FEW; back < head; back *= 2) {
    const asked = { from_seq: head - back, limit: 1, include_meta: false };
    const told = await call("POST", `/v0/topics/${encodeURIComponent(name)}/diff`, asked, { signal }).then((r) => r.json());
    if (told.records.length) return head - back;
  }
  return 0;
}

// The cursor of a topic in the id of an event.
const cursorIn = (id, name) => JSON.parse(atob(id.replaceAll("-", "+").replaceAll("_", "/")))[name];

// Numbers as they were sent: those that a double cannot hold, and 1.10, too.
const exactly = (_, value, context) =>
  typeof value === "number" && JSON.rawJSON && context?.source !== String(value) ? JSON.rawJSON(context.source) : value;

async function watch(name, signal, place) {
  place.cursor ??= await lastFew(name, signal);
  const session = await call("POST", "/v0/watch", { topics: { [name]: { from_seq: place.cursor } }, include_tags: true, limit: SHOWN_RECORDS, heartbeat_ms: 5000 }, { signal }).then((r) => r.json());
  let last = null;
  while (!signal.aborted) {
    const headers = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
    const response = await call("GET", session.stream_url, undefined, { headers, signal });
    tell("tail-state", "good", "watching");
    for await (const event of events(response)) {
      if (event.id) {
        last = event.id;
        place.cursor = cursorIn(last, name);
      }
      const told = JSON.parse(event.data, exactly);
      if (event.event === "record") add(told.records.map(recordItem));
      else if (event.event === "tombstone") add([noteItem(noteOf(told))]);
      else if (event.event === "topic-deleted") {
        add([noteItem("the topic was dropped")]);
        tell("tail-state", "wait", "dropped");
        return;
      }
    }
    tell("tail-state", "wait", "connecting again");
    await new Promise((done) => setTimeout(done, 1000));
  }
}

async function choose(name) {
  watching?.abort();
  watching = new AbortController();
  const { signal } = watching;
  chosen = name;
  held = [];
  setPaused(false);
  find("pause").disabled = false;
  find("tail-title").textContent = name;
  find("tail-title").title = name;
  find("tail-hint").hidden = true;
  find("records").replaceChildren();
  for (const [other, entry] of rows) entry.row.setAttribute("aria-selected", String(other === name));
  const place = {}; // outlives a server that is started again, so that no record is shown twice or passed over
  while (!signal.aborted) {
    try {
      await watch(name, signal, place);
      return;
    } catch (error) {
      if (signal.aborted) return;
      tell("tail-state", "bad", error.status ? error.message : "the server does not answer");
      if (error.status === 404 && !rows.has(name)) return;
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

function setPaused(value) {
  paused = value;
  find("pause").textContent = value ? "Go on" : "Pause";
  if (!value) add(held.splice(0));
}

find("pause").addEventListener("click", () => setPaused(!paused));
find("filter").addEventListener("input", () => refresh().catch(() => {}));
listForEver();
