// Elements from words: nothing is ever taken as markup, since packets and files may hold anything.

/** An element; `attributes` may have `class`, `text` and whatever HTML has; children are elements or strings. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") made.textContent = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** A table: a caption, headings ({text, n: a number's}), rows of cells ({class, cells}); the first cell is the row's head. */
export function table(caption, heads, rows) {
  const row = ({ class: kind, cells }) => el("tr", { class: kind },
    ...cells.map((cell, i) => {
      const made = el(i ? "td" : "th", i ? { class: heads[i].n && "n" } : { scope: "row" });
      made.append(cell instanceof Node ? cell : String(cell));
      return made;
    }));
  return el("table", {},
    el("caption", { text: caption }),
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col", class: head.n && "n", text: head.text })))),
    el("tbody", {}, ...rows.map(row)));
}

/** good, bad or other: as `uvs walk` colours a verdict. */
export function judged(walk, good) {
  if (good.has(walk.why)) return "good";
  return walk.verdict === "DROP" || walk.why === "no_neighbour" ? "bad" : "other";
}
