// Packets on the drawing of index.html.
import { judged } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const SPEED = 0.45; // of the drawing's units a millisecond
const AT_ONCE = 40; // dots; of a flood the rest is only listed

// The ways of the drawing, as points; `way-NAME` there is the same line.
const WAYS = {
  in: [[62, 270], [160, 270]],
  route: [[160, 270], [290, 270]],
  local_in: [[290, 270], [290, 145]],
  forward: [[290, 270], [453, 280], [579, 280]],
  local: [[422, 145], [330, 100], [330, 52], [480, 52]],
  from: [[480, 52], [650, 52], [650, 110], [598, 145]],
  out: [[579, 280], [640, 270], [770, 270]],
  local_out: [[722, 145], [770, 180], [770, 270]],
  wire: [[770, 270], [930, 270]],
  xmit: [[422, 145], [425, 212], [868, 212], [868, 270], [930, 270]],
  xmit_out: [[722, 145], [790, 135], [868, 135], [868, 270], [930, 270]],
};
const INSIDE = { LOCAL_IN: [[298, 145], [422, 145]], FORWARD: [], LOCAL_OUT: [[598, 145], [722, 145]] };
const TO = { LOCAL_IN: ["in", "route", "local_in"], FORWARD: ["in", "route", "forward"], LOCAL_OUT: ["from"] };
const ON = { LOCAL_IN: ["local"], FORWARD: ["out", "wire"], LOCAL_OUT: ["local_out", "wire"] };
const TAKEN = { LOCAL_IN: ["xmit"], FORWARD: ["out", "wire"], LOCAL_OUT: ["xmit_out"] };
const HOOKS = { in: "PRE_ROUTING", out: "POST_ROUTING", local_out: "POST_ROUTING" };

/** The ways that a walk's packet took: names of WAYS up to its hook, and from there. */
export function route(walk) {
  const sent = walk.sent.some((one) => !one.own) && walk.why !== "no_neighbour";
  const after = walk.verdict === "ACCEPT" ? ON[walk.hook] : sent && walk.verdict !== "DROP" ? TAKEN[walk.hook] : [];
  return { to: TO[walk.hook] ?? [], after: after ?? [] };
}

export class Path {
  #svg; #layer; #good; #choose; #moving = new Set();
  #still = matchMedia("(prefers-reduced-motion: reduce)");

  /** `choose(walk)`: a dot was clicked. */
  constructor(svg, choose) {
    this.#svg = svg;
    this.#layer = svg.querySelector("#packets-moving");
    this.#choose = choose;
  }

  begin(good) {
    this.#good = good;
    this.#layer.replaceChildren();
    this.#moving.clear();
  }

  /** Mark the way of the chosen packet: lines, hooks, and the handlers that saw it. */
  show(walk) {
    for (const one of this.#svg.querySelectorAll(".on, .end-bad")) one.classList.remove("on", "end-bad");
    if (!walk) return;
    const { to, after } = route(walk);
    for (const name of [...to, ...after]) {
      this.#svg.querySelector(`#way-${name}`).classList.add("on");
      if (HOOKS[name]) this.#svg.querySelector(`#hook-${HOOKS[name]}`).classList.add("on");
    }
    const hook = this.#svg.querySelector(`#hook-${CSS.escape(walk.hook)}`);
    if (!hook) return;
    hook.classList.add(after.length ? "on" : "end-bad");
    const seen = new Set(walk.steps.map((step) => step.function));
    for (const handler of hook.querySelectorAll(".handler")) handler.classList.toggle("on", seen.has(handler.dataset.function));
  }

  /** Let a packet move along its way, unless motion is not wanted. */
  move(walk) {
    if (this.#still.matches || document.hidden || this.#moving.size >= AT_ONCE) return;
    const { to, after } = route(walk);
    if (!to.length) return;
    const points = [...to.flatMap((name) => WAYS[name]), ...INSIDE[walk.hook], ...after.flatMap((name) => WAYS[name])];
    const dot = document.createElementNS(SVG, "circle");
    dot.setAttribute("r", 8);
    dot.setAttribute("class", `dot ${judged(walk, this.#good)}`);
    dot.addEventListener("click", () => this.#choose(walk));
    this.#layer.append(dot);
    const lengths = points.slice(1).map(([x, y], i) => Math.hypot(x - points[i][0], y - points[i][1]));
    const whole = lengths.reduce((a, b) => a + b, 0);
    const it = { dot };
    this.#moving.add(it);
    const start = performance.now();
    const step = (now) => {
      if (!this.#moving.has(it)) return;
      let gone = Math.max(now - start, 0) * SPEED;
      if (gone > whole + 300) { // it rests for a moment where it ended
        dot.remove();
        this.#moving.delete(it);
        return;
      }
      gone = Math.min(gone, whole);
      let i = 0;
      while (i < lengths.length - 1 && gone > lengths[i]) gone -= lengths[i++];
      const part = lengths[i] ? gone / lengths[i] : 0;
      dot.setAttribute("cx", points[i][0] + (points[i + 1][0] - points[i][0]) * part);
      dot.setAttribute("cy", points[i][1] + (points[i + 1][1] - points[i][1]) * part);
      requestAnimationFrame(step);
    };
    step(start);
  }
}
