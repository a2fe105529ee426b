// Shows /api/v1/picture, again and again. Everything from outside becomes text, never markup.
"use strict";

// Name of the column, its title here, and its format.
const TABLES = {
  scopes: [["scope", "scope"], ["mark", "mark", "number"], ["raised_at", "age", "age"], ["raised_by", "raised by", "long"],
    ["sessions", "sessions", "number"], ["stale_sessions", "stale sessions", "alarm"]],
  takeovers: [["scope", "scope"], ["from", "from", "number"], ["to", "to", "number"], ["raised_at", "when", "time"],
    ["raised_by", "by", "long"], ["outcome", "outcome", "outcome"], ["sessions", "ended", "number"],
    ["transactions", "in transaction", "number"], ["took_us", "took", "took"], ["why", "why", "long"]],
  rejections: [["time", "when", "time"], ["kind", "kind"], ["sqlstate", "code", "code"], ["scope", "scope"],
    ["token", "token", "number"], ["mark", "mark", "number"], ["application_name", "application"],
    ["statement", "statement", "long"], ["reason", "reason", "long"], ["user", "user"], ["database", "database"],
    ["client_addr", "client"], ["enforced", "enforced"], ["count", "count", "number"]],
  sessions: [["id", "id", "number"], ["user", "user"], ["database", "database"], ["application_name", "application"],
    ["client_addr", "client"], ["since", "since", "time"], ["tls", "TLS"], ["state", "state"], ["tokens", "tokens"],
    ["backend_pid", "backend", "number"]],
  pools: [["database", "database"], ["user", "user"], ["pool_mode", "mode"], ["cl_active", "clients", "number"],
    ["cl_waiting", "waiting", "number"], ["maxwait", "longest wait", "seconds"], ["sv_active", "lent", "number"],
    ["sv_idle", "idle", "number"], ["sv_tested", "in reset", "number"], ["sv_login", "opening", "number"]],
  proxies: [["pid", "control pid", "number"], ["address", "address"], ["application_name", "application"],
    ["since", "since", "time"], ["authority", "authority"], ["this_one", "this one"]],
};
// A leader that was refused so recently still runs.
const RECENT_MS = 60_000;
// After so long without an answer, the page says so.
const SILENT_MS = 12_000;
const LINES_MAX = 12;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
let picture = null;
let heardAt = 0;
let serverAhead = 0;
let shown = {};

const now = () => Date.now() + serverAhead;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function ageOf(time) {
  const seconds = Math.max(0, Math.round((now() - Date.parse(time)) / 1000));
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds} s`;
}

const CELLS = {
  number: (value) => element("td", value, "number"),
  long: (value) => element("td", value, "long"),
  code: (value) => element("td", value, "bad"),
  alarm: (value) => element("td", value, value > 0 ? "number bad" : "number"),
  time: (value) => element("td", value.replace("T", " ").replace(/\.\d+/, "")),
  took: (value) => element("td", `${(value / 1000).toFixed(1)} ms`, "number"),
  seconds: (value) => element("td", `${value} s`, "number"),
  outcome: (value) => element("td", value, { complete: "good", incomplete: "bad", observed: "warn" }[value]),
  age: (value) => {
    const cell = element("td", ageOf(value));
    cell.dataset.age = value;
    cell.title = value;
    return cell;
  },
};

function isRight(kind) {
  return ["number", "alarm", "took", "seconds"].includes(kind);
}

function cell(value, kind) {
  if (value === null || value === undefined) return element("td", "\u2013", isRight(kind) ? "none number" : "none");
  return (CELLS[kind] ?? ((text) => element("td", text)))(value);
}

function wanted(name, rows) {
  const field = document.querySelector(`[data-filter="${name}"]`);
  const words = field ? field.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
  const observed = name !== "rejections" || byId("observed").checked;
  return rows.filter((row) => {
    if (!observed && row.enforced === "no") return false;
    const text = Object.values(row).join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function showTable(name) {
  const columns = TABLES[name];
  const table = document.querySelector(`[data-table="${name}"]`);
  const { rows, total, why_not: whyNot } = picture[name];
  const count = byId(name).querySelector(".count");
  if (whyNot !== undefined) {
    count.textContent = "";
    table.replaceChildren(element("caption", `Cannot be read now: ${whyNot}`, "bad"));
    return;
  }
  const kept = wanted(name, rows);
  const all = kept.length === total;
  count.textContent = all ? `${total}` : `${kept.length} of ${total}`;
  const head = element("tr");
  head.append(...columns.map(([, title, kind]) => {
    const made = element("th", title, isRight(kind) ? "number" : undefined);
    made.scope = "col";
    return made;
  }));
  const body = element("tbody");
  for (const row of kept) {
    const made = element("tr");
    made.append(...columns.map(([column, , kind]) => cell(row[column], kind)));
    body.append(made);
  }
  if (kept.length === 0) {
    const none = element("td", "none", "none");
    none.colSpan = columns.length;
    body.append(element("tr"));
    body.lastChild.append(none);
  }
  const top = element("thead");
  top.append(head);
  table.replaceChildren(top, body);
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// One line for each scope: its leaders, and the result of each takeover.
function showLine() {
  const line = byId("line");
  const takeovers = (picture.takeovers.rows ?? []).filter((row) => row.raised_at);
  const scopes = [...new Set(takeovers.map((row) => row.scope))].slice(0, LINES_MAX);
  const width = Math.max(300, line.clientWidth || 800);
  const [left, right, high] = [Math.min(160, width / 4), width - 12, 30];
  const end = now();
  const since = Number(byId("range").value) * 1000;
  const first = Math.min(...takeovers.map((row) => Date.parse(row.raised_at)), end - 1000);
  const begin = since ? end - since : first;
  const at = (time) => left + Math.max(0, (time - begin) / (end - begin)) * (right - left);
  line.setAttribute("viewBox", `0 0 ${width} ${Math.max(1, scopes.length) * high + 4}`);
  line.replaceChildren();
  scopes.forEach((scope, index) => {
    const y = index * high + 4;
    line.append(drawn("text", { x: 0, y: y + 16 }, scope.length > 20 ? `${scope.slice(0, 19)}\u2026` : scope));
    const own = takeovers.filter((row) => row.scope === scope);
    const starts = [];
    own.forEach((row, place) => {
      const [from, to] = [Date.parse(row.raised_at), place ? Date.parse(own[place - 1].raised_at) : end];
      if (to < begin) return;
      const [x, until] = [at(from), at(to)];
      const term = drawn("rect", { x, y, width: Math.max(1, until - x), height: 22, class: place ? "term" : "now" });
      const ended = row.sessions === 1 ? "1 session" : `${row.sessions} sessions`;
      const told = `${scope} ${row.to}: ${row.raised_by}, ${row.outcome}, ${ended} ended`;
      term.append(drawn("title", {}, told));
      line.append(term);
      if (until - x > 9 * String(row.to).length + 14) line.append(drawn("text", { x: x + 10, y: y + 15 }, row.to));
      if (from >= begin) starts.push(drawn("circle", { cx: x, cy: y + 11, r: 5, class: row.outcome }));
    });
    line.append(...starts);
  });
}

// Problems, and what to do about them.
function concerns() {
  const all = [];
  const say = (level, what, advice) => all.push({ level, what, advice });
  if (picture.not_ready) {
    say("bad", `This proxy is not ready: ${picture.not_ready}`, picture.not_ready === "the proxy is shutting down"
      ? "No new client gets in. Sessions end once no transaction is open, or, after SHUTDOWN WAIT_FOR_CLIENTS, when "
        + "their clients leave."
      : "Leaders that hold a token keep working; no new token is accepted. Run: pgpalisade check");
  }
  const seen = new Set();
  for (const row of picture.takeovers.rows ?? []) {
    if (seen.has(row.scope)) continue;
    seen.add(row.scope);
    if (row.outcome === "incomplete") {
      say("bad", `The takeover of scope ${row.scope} by token ${row.to} is not complete: ${row.why}`,
        "The new leader is refused (PF006) until those sessions are gone: end the server processes named here, "
        + "or restart their machine. The takeover continues when the leader declares its token again.");
    }
  }
  const recent = (picture.rejections.rows ?? [])
    .filter((row) => row.sqlstate === "PF001" && row.enforced === "yes" && row.kind !== "session_ended")
    .filter((row) => now() - Date.parse(row.time) < RECENT_MS);
  if (recent.length > 0) {
    // Each connection has its own port: only the host identifies the process.
    const host = (row) => row.client_addr?.replace(/:\d+$/, "") ?? "?";
    const who = [...new Set(recent.map((row) => `${row.application_name ?? row.user ?? "?"} at ${host(row)}`))];
    say("warn", `A deposed leader was refused in the last minute: ${who.slice(0, 3).join(", ")}`,
      "Nothing was written. The process believes that it leads: stop it, or restart it.");
  }
  return all;
}

function showBanner(all) {
  const key = JSON.stringify(all);
  if (shown.banner === key) return;
  shown.banner = key;
  byId("banner").replaceChildren(...all.map(({ level, what, advice }) => {
    const item = element("li", undefined, level);
    item.append(element("strong", what), advice);
    return item;
  }));
}

function stand(text, className) {
  const standing = byId("standing");
  if (standing.textContent !== text) standing.textContent = text;
  standing.className = className;
}

function tick() {
  if (!byId("login").hidden) return;
  if (Date.now() - heardAt > SILENT_MS) {
    stand("no answer", "bad");
    if (picture) {
      showBanner([{ level: "bad", what: "This proxy does not answer. What you see is old.",
        advice: "Is it running, and can this machine reach it? journalctl -u pgpalisade" }]);
    }
    return;
  }
  if (!picture) return;
  const all = concerns();
  stand(picture.not_ready ? "not ready" : "serving", picture.not_ready ? "bad" : "good");
  showBanner(all);
  for (const each of document.querySelectorAll("[data-age]")) each.textContent = ageOf(each.dataset.age);
}

function show() {
  byId("version").textContent = picture.version;
  for (const name of Object.keys(TABLES)) {
    const key = JSON.stringify(picture[name]);
    if (shown[name] === key) continue;
    shown[name] = key;
    showTable(name);
  }
  showLine();
  tick();
}

// False if a token is needed first.
async function look() {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch("api/v1/picture", { headers, cache: "no-store" });
  byId("login").hidden = answer.status !== 401;
  if (answer.status === 401) {
    stand("a token is needed", "bad");
    return false;
  }
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const told = await answer.json();
  heardAt = Date.now();
  serverAhead = told.now - heardAt;
  const key = JSON.stringify(told.picture);
  if (shown.picture !== key) {
    shown.picture = key;
    picture = told.picture;
    show();
  }
  return true;
}

async function run() {
  for (;;) {
    try {
      if (!await look()) return;
    } catch {
      // It tries again; the clock shows that no answer comes.
    }
    tick();
    await new Promise((then) => setTimeout(then, 1000));
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  run();
});
for (const field of document.querySelectorAll("[data-filter]")) {
  field.addEventListener("input", () => picture && showTable(field.dataset.filter));
}
byId("observed").addEventListener("change", () => picture && showTable("rejections"));
byId("range").addEventListener("change", () => picture && showLine());
addEventListener("resize", () => picture && showLine());
setInterval(tick, 1000);
run();
