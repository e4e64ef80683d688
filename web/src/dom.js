// Elements from names and texts. Whatever the server says goes through here, as text and never as HTML.

export const $ = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// The text that is there is changed rather than replaced: what is told again and again leaves no garbage.
export function setText(node, text) {
  const only = node.firstChild;
  if (only?.nodeType === Node.TEXT_NODE && !only.nextSibling) {
    if (only.data !== text) only.data = text;
  } else if (node.textContent !== text) {
    node.textContent = text;
  }
}

// Keeps one row for each of `items`, in their order; rows are used again, so that focus and selection stay.
// make(item) gives {row, ...}, update(kept, item) fills it in.
export class Rows {
  constructor(body, key, make, update) {
    Object.assign(this, { body, key, make, update, kept: new Map() });
  }
  show(items) {
    const left = new Map(this.kept);
    let before = null;
    for (const item of items) {
      const key = this.key(item);
      let kept = this.kept.get(key);
      if (!kept) this.kept.set(key, (kept = this.make(item)));
      left.delete(key);
      this.update(kept, item);
      const at = before ? before.nextSibling : this.body.firstChild;
      if (at !== kept.row) this.body.insertBefore(kept.row, at);
      before = kept.row;
    }
    for (const [key, kept] of left) {
      kept.row.remove();
      this.kept.delete(key);
    }
  }
}

// Pairs of names and values, made anew only where they change.
export function facts(list, pairs) {
  const text = JSON.stringify(pairs);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}
