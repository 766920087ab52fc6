// One walk: its verdict, its steps as a tree, the table's entry, what changed.
import { el, judged, table } from "./dom.js";

const ENDS = ["client", "virtual", "destination"];

/** The elements that tell of a walk. */
export function told(walk, meaning, good) {
  const about = [`${walk.length} bytes`, `at ${walk.hook}`];
  if (walk.mark) about.push(`mark ${walk.mark}`);
  return [
    el("p", {}, el("code", { text: walk.packet }), " ", el("span", { class: "dim", text: `(${about.join(", ")})` })),
    el("p", { class: judged(walk, good) }, el("strong", { text: walk.verdict }), ` ${walk.why}: ${meaning[walk.why] ?? "?"}`),
    el("h3", { text: "Steps" }),
    tree(walk),
    ...entry(walk.entry),
    ...left(walk),
  ];
}

function tree(walk) {
  const root = el("ul", { class: "tree" });
  const open = [{ depth: -1, list: root, item: null }];
  for (const step of walk.steps) {
    while (open.length > 1 && open.at(-1).depth >= step.depth) open.pop();
    const above = open.at(-1);
    if (above.item && !above.list) {
      above.list = el("ul");
      above.item.append(above.list);
    }
    const item = el("li", {}, el("span", { text: step.function }));
    const looked = lookedAt(step, walk);
    if (step.decision && step.decision !== "begin") item.append(" ", el("span", { class: "decision", text: step.decision }));
    if (looked) item.append(" ", el("span", { class: "looked dim", text: looked }));
    above.list.append(item);
    open.push({ depth: step.depth, list: null, item });
  }
  return root;
}

/** What a step looked at, without what stands elsewhere in the walk. */
function lookedAt(step, walk) {
  const looked = { ...step.looked_at };
  if (looked.packet === walk.packet) delete looked.packet;
  if (step.decision === "begin") delete looked.hook;
  const words = [];
  if (ENDS.every((end) => end in looked)) {
    words.push(way(looked));
    for (const name of [...ENDS, "protocol", "method", "state", "expires", "template"]) delete looked[name];
  }
  for (const [name, value] of Object.entries(looked)) {
    if (value === null || value === false) continue;
    if (name === "timeout") words.push(`${value / 1000} s`);
    else if (name === "direction") words.push(String(value));
    else words.push(`${name.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  }
  return words.join(", ");
}

function way(entry) {
  return `${ENDS.map((end) => entry[end]).join(" → ")} ${entry.method}`;
}

function entry({ before, after }) {
  if (!before && !after) return [];
  const row = (label, one) => ({
    cells: one ? [label, `${one.protocol} ${way(one)}`, one.state, `${Math.round(one.expires / 1000)} s`] : [label, "none", "", ""],
  });
  const heads = [{ text: "" }, { text: "client → virtual → server" }, { text: "state" }, { text: "time left", n: true }];
  return [el("h3", { text: "Connection" }), table("the table's entry", heads, [row("before", before), row("after", after)])];
}

function left(walk) {
  const found = [];
  if (walk.changes) found.push(...changes(`accepted, ${walk.changes.length ? "rewritten" : "unchanged"}`, walk.changes));
  for (const sent of walk.sent) {
    if (sent.own) found.push(...changes(`answer: ${sent.packet}`, null));
    else found.push(...changes(`${walk.why === "no_neighbour" ? "lost" : "sent"}: ${sent.packet} via ${sent.nexthop}`, sent.changes));
  }
  if (walk.omitted) found.push(el("p", { class: "dim", text: `and ${walk.omitted} more like it` }));
  return found.length ? [el("h3", { text: "What left" }), ...found] : [];
}

function changes(caption, list) {
  if (!list?.length) return [el("p", {}, el("code", { text: caption }))];
  const heads = [{ text: "layer" }, { text: "field" }, { text: "came" }, { text: "left" }];
  const rows = list.map((change, i) => ({
    cells: [
      list[i - 1]?.layer === change.layer ? el("span", { class: "hidden", text: change.layer }) : change.layer,
      change.field,
      change.before === null ? "–" : el("del", { text: change.before }),
      change.after === null ? "–" : el("ins", { text: change.after }),
    ],
  }));
  return [table(caption, heads, rows)];
}
