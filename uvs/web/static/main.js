// The page: takes events, keeps packets and states, and shows them as of a place on the time line.
import { el, judged } from "./dom.js";
import { Path } from "./path.js";
import * as tables from "./tables.js";
import { told } from "./walk.js";

const WALKS_MAX = 500; // of a director; a recording is kept whole
const STATES_MAX = 500;
const STEP_MS = 1200; // between two packets while playing
const APART_MS = 60, LATE_MS = 1000; // between two that set out, though they come in bunches; what would be later stays

const by = (id) => document.getElementById(id);
const path = new Path(by("path"), (walk) => go(walks.indexOf(walk)));

let hello = null, good = new Set();
let walks = [], states = []; // states: {seen: how many walks had come, state, at: when, by performance.now()}
let dropped = 0; // walks that came before the first one kept
let chosen = -1; // index of the packet that is shown
let follow = true; // the newest packet is chosen as it comes
let playing = 0; // the timer of Play

// ---------------------------------------------------------------- events

const source = new EventSource("events");
const on = (name, take) => source.addEventListener(name, (event) => take(JSON.parse(event.data)));

on("hello", (data) => {
  hello = data;
  good = new Set(hello.good);
  walks = [];
  states = [];
  dropped = 0;
  chosen = -1;
  shown = listed = undefined;
  follow = hello.live;
  by("packets").replaceChildren();
  path.begin(good);
  status(hello.live ? "live: waiting for packets" : "recorded walks");
  show();
});
on("walk", (walk) => {
  walks.push(walk);
  by("packets").append(row(walk));
  if (hello.live && walks.length > WALKS_MAX) forget();
  if (hello.live) setOut(walk);
  later();
});
on("state", (state) => {
  states.push({ seen: dropped + walks.length, state, at: performance.now() });
  if (states.length > STATES_MAX) states.shift();
  status("live");
  // Not in the status, which screen readers say again when it changes.
  by("figures").textContent = `connections: ${state.table.conns}, ${state.total.rate.packets_in} packets/s in`;
  later();
});
on("absent", ({ error }) => status(error, true));
on("end", ({ walks: count }) => {
  source.close(); // a recording does not go on
  status(`recorded: ${count} ${count === 1 ? "packet" : "packets"}`);
  go(0);
});
source.onerror = () => status("uvs web does not answer; the page tries again", true);

function status(text, bad = false) {
  if (by("status").textContent !== text) by("status").textContent = text;
  by("status").classList.toggle("bad", bad);
  if (bad) by("figures").textContent = "";
}

function forget() {
  walks.shift();
  dropped++;
  by("packets").firstElementChild.remove();
  if (chosen >= 0) chosen--;
  if (chosen < 0) follow = true;
}

let next = 0; // when the next packet may set out
function setOut(walk) {
  const now = performance.now();
  next = Math.max(now, next + APART_MS);
  if (next - now > LATE_MS) next -= APART_MS;
  else setTimeout(() => path.move(walk), next - now);
}

let due = false;
/** Show once for many events. */
function later() {
  if (due) return;
  due = true;
  setTimeout(() => {
    due = false;
    if (follow && hello.live && walks.length - 1 !== chosen) go(walks.length - 1, true);
    else show();
  }, 50);
}

// ---------------------------------------------------------------- what is shown

function row(walk) {
  const kind = judged(walk, good);
  const item = el("li", { role: "option", id: `packet-${dropped + walks.length}`, "aria-selected": "false" },
    el("span", { class: "dim", text: walk.number }),
    el("span", { class: "packet", text: walk.packet }),
    el("span", { class: "dim", text: walk.hook }),
    el("span", { class: kind, text: walk.why }));
  item.addEventListener("click", () => go(walks.indexOf(walk)));
  return item;
}

/** Choose a packet; `newest`: since it came, not because somebody did. */
function go(index, newest = false) {
  if (!walks.length) return;
  const before = chosen;
  chosen = Math.max(0, Math.min(index, walks.length - 1));
  follow = hello.live && chosen === walks.length - 1;
  if (!newest && !hello.live && chosen !== before) path.move(walks[chosen]);
  show();
}

let shown = null;
function show() {
  const walk = walks[chosen] ?? null;
  if (walk !== shown) {
    shown = walk;
    path.show(walk);
    by("walk-title").textContent = walk ? `Walk of packet ${walk.number}` : "Walk";
    by("walk").replaceChildren(...(walk ? told(walk, hello.meaning, good) : [el("p", { class: "help", text: "No packet yet." })]));
  }
  list(walk);
  line(walk);
  lists();
}

function list() {
  const items = by("packets");
  items.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
  const item = items.children[chosen];
  for (const one of items.querySelectorAll(".later")) one.classList.remove("later");
  if (!item) {
    items.removeAttribute("aria-activedescendant");
    return;
  }
  item.setAttribute("aria-selected", "true");
  items.setAttribute("aria-activedescendant", item.id);
  for (let next = item.nextElementSibling; next; next = next.nextElementSibling) next.classList.add("later");
  // Not scrollIntoView: that would move the page as well.
  if (item.offsetTop - items.offsetTop < items.scrollTop) items.scrollTop = item.offsetTop - items.offsetTop;
  const below = item.offsetTop - items.offsetTop + item.offsetHeight - items.clientHeight;
  if (below > items.scrollTop) items.scrollTop = below;
}

function line(walk) {
  const time = by("time");
  time.disabled = !walks.length;
  time.max = Math.max(walks.length - 1, 0);
  time.value = Math.max(chosen, 0);
  const at = walk ? ((walk.time - walks[0].time) / 1e9).toFixed(3) : "0.000";
  const text = walk ? `packet ${chosen + 1} of ${walks.length}, ${at} s` : "no packet";
  time.setAttribute("aria-valuetext", text);
  by("when").textContent = text + (hello?.live ? (follow ? ", live" : ", stepped back") : "");
  for (const [id, off] of [["first", chosen <= 0], ["back", chosen <= 0], ["on", chosen >= walks.length - 1]]) {
    by(id).setAttribute("aria-disabled", String(off)); // not `disabled`: focus would be lost at the end
  }
}

let listed = null; // of what the tables tell: made anew only for another, so that reading them is not disturbed
/** Services and connections as they were then. */
function lists() {
  let rows, total = 0;
  if (hello.live) {
    // The latest; or, stepped back, the first that was taken with the chosen packet come.
    const then = follow || chosen < 0 ? states.at(-1) : states.find((one) => one.seen > dropped + chosen) ?? states.at(-1);
    by("services-part").hidden = !then;
    if (!then || then === listed) return;
    listed = then;
    by("services").replaceChildren(...tables.services(then.state));
    rows = tables.fromState(then.state);
    total = then.state.table.conns;
  } else {
    if (walks[chosen] === listed) return;
    listed = walks[chosen];
    rows = tables.fromWalks(walks.slice(0, chosen + 1));
  }
  by("conns").replaceChildren(...tables.connections(rows, total));
}

setInterval(() => { // on paper, and in the past, no time passes
  if (hello?.live && listed === states.at(-1) && listed) tables.countDown(by("conns"), performance.now() - listed.at);
}, 500);

// ---------------------------------------------------------------- hands

function play(wanted) {
  clearInterval(playing);
  playing = wanted ? setInterval(() => (chosen < walks.length - 1 ? go(chosen + 1) : play(false)), STEP_MS) : 0;
  by("play").setAttribute("aria-pressed", String(Boolean(wanted)));
  by("play").textContent = wanted ? "Pause" : "Play";
}

const stop = (index) => {
  play(false);
  go(index);
};
by("first").addEventListener("click", () => stop(0));
by("back").addEventListener("click", () => stop(chosen - 1));
by("on").addEventListener("click", () => stop(chosen + 1));
by("last").addEventListener("click", () => stop(walks.length - 1));
by("time").addEventListener("input", (event) => stop(Number(event.target.value)));
by("play").addEventListener("click", () => {
  if (!playing && chosen >= walks.length - 1) go(0);
  play(!playing);
});
by("packets").addEventListener("keydown", (event) => {
  const page = 10;
  const to = { ArrowUp: chosen - 1, ArrowDown: chosen + 1, Home: 0, End: walks.length - 1, PageUp: chosen - page, PageDown: chosen + page };
  if (event.key === "Enter") by("walk-title").focus();
  else if (event.key in to) stop(to[event.key]);
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && by("walk-title").contains(document.activeElement)) by("packets").focus();
});
