// Services with their servers, and the connection table.
import { el, table } from "./dom.js";

const RATES = ["connections", "packets_in", "packets_out", "bytes_in", "bytes_out"];
const SHOWN = 200; // rows of connections

function endpoint({ address, port }) {
  return `${address.includes(":") ? `[${address}]` : address}:${port}`;
}

/** The services of a state. */
export function services(state) {
  if (!state.services.length) return [el("p", { class: "help", text: "The director has no service." })];
  const heads = [{ text: "service, server" }, { text: "method" }, { text: "weight", n: true }, { text: "active", n: true },
    { text: "inactive", n: true }, { text: "conn/s", n: true }, { text: "in p/s", n: true }, { text: "out p/s", n: true },
    { text: "in B/s", n: true }, { text: "out B/s", n: true }];
  const rates = (one) => RATES.map((name) => one.rate[name]);
  const sum = (servers, name) => servers.reduce((all, one) => all + one[name], 0);
  const rows = state.services.flatMap((service) => {
    const name = "fwmark" in service ? `mark ${service.fwmark}` : `${service.protocol.toUpperCase()} ${endpoint(service)}`;
    const weight = sum(service.servers, "weight");
    const head = [name, service.scheduler || "none", weight, sum(service.servers, "active"), sum(service.servers, "inactive")];
    return [
      { class: `service${weight ? "" : " none"}`, cells: [...head, ...rates(service)] },
      ...service.servers.map((one) => ({
        class: "server",
        cells: [`→ ${endpoint(one)}`, one.method, one.weight, one.active, one.inactive, ...rates(one)],
      })),
    ];
  });
  return [table("rates are the director's own, and follow slowly", heads, rows), reasons(state)];
}

function reasons(state) {
  const words = Object.entries(state.reasons).sort((a, b) => b[1] - a[1]).map(([why, count]) => `${why} ${count}`);
  return el("p", { class: "help", text: `verdicts by reason: ${words.join(", ") || "none yet"}` });
}

/** Connections of a director's state: rows with `ms` left at the time of the state. */
export function fromState(state) {
  return state.connections?.map((one) => ({
    name: `${one.protocol} ${[one.client, one.virtual, one.server].map(endpoint).join(" → ")}`, state: one.state, ms: one.ms,
  })) ?? null;
}

/** Connections as walks left them, up to the last of `walks`: what is known of a recorded table. */
export function fromWalks(walks) {
  const found = new Map();
  const now = walks.at(-1)?.time ?? 0;
  for (const walk of walks) {
    const after = walk.entry.after;
    if (!after) continue;
    const name = `${after.protocol} ${after.client} → ${after.virtual} → ${after.destination} ${after.method}`;
    found.set(name, { name, state: after.state, ms: after.expires, at: walk.time });
  }
  return [...found.values()]
    .map((one) => ({ ...one, ms: one.ms - (now - one.at) / 1e6 }))
    .filter((one) => one.ms > 0);
}

/** The table of them; `total`: how many there are where `rows` is null. */
export function connections(rows, total) {
  if (rows === null) {
    return [el("p", { class: "help", text: `${total} connections: too many to list; uvsadm -L -c -n lists them.` })];
  }
  if (!rows.length) return [el("p", { class: "help", text: "None." })];
  const heads = [{ text: "client → virtual → server" }, { text: "state" }, { text: "time left", n: true }];
  const made = table("", heads, rows.slice(0, SHOWN).map((one) => ({
    cells: [one.name, one.state, el("span", { "data-ms": one.ms, class: "left", text: seconds(one.ms) })],
  })));
  made.querySelector("caption").textContent = `${rows.length} ${rows.length === 1 ? "connection" : "connections"}${rows.length > SHOWN ? `, of which ${SHOWN} are shown` : ""}`;
  return [made];
}

function seconds(ms) {
  const s = Math.ceil(Math.max(ms, 0) / 1000);
  return s < 60 ? `${s} s` : `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
}

/** Count the timers down by `gone` ms since the table was made. */
export function countDown(part, gone) {
  for (const one of part.querySelectorAll(".left")) one.textContent = seconds(Number(one.dataset.ms) - gone);
}
