// Elements and numbers. Text from the runs is only ever set as text, never parsed as HTML.

const byId = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const known = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3);
const ms = (value) => (known(value) ? `${value.toFixed(digits(Math.abs(value)))} ms` : "–");
const spaced = (budget) => budget.replace(/\s*%$/, " %").replace(/\s*ms$/, " ms").replace(/x$/, "×");
const share = (value) => `${(100 * value).toFixed(1)} %`;

/** A button that does something; named where its text does not say enough. */
function button(text, name, action) {
  const made = el("button", { type: "button", "aria-label": name }, text);
  made.addEventListener("click", action);
  return made;
}
