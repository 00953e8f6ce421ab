// Elements, numbers as text, charts and tables. Text from the runs is only ever set as text, never parsed as HTML.

const SHAPES = ["circle", "square", "up", "diamond", "down", "cross"];
const DASHES = ["", "7 4", "2 3", "8 3 2 3"];
const SPEEDS = [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20];

// -- elements

const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "style") Object.assign(node.style, value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const show = (id, ...children) => byId(id).replaceChildren(...children.flat().filter(Boolean));

// -- numbers as people read them

const known = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3);
const ms = (value, unit = " ms") => (known(value) ? value.toFixed(digits(value)) + unit : "–");
const times = (value) => (known(value) ? `${value.toFixed(2)}×` : "–");
const share = (value) => (known(value) ? `${(100 * value).toFixed(1)} %` : "–");
const kernel = (pair) => `${pair[0]}×${pair[1]}`;
const map = (shape) => `${shape[1]}×${shape[2]}`;
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const spaced = (budget) => budget.replace("%", " %").replace("ms", " ms").replace(/x$/, "×");
const percent = (score) => score.kind === "share";
const scaled = (score, value) => (!known(value) ? null : percent(score) ? 100 * value : value);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const scoreTitle = (score) => `${score.name} ${percent(score) ? "(%)" : "(less is better)"}`;

function seconds(value) {
  if (!value) return "–"; // tables of earlier versions did not note it
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return value < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}

function scoreText(score, unit = " %") {
  if (!score || !known(score.value)) return "–";
  return percent(score) ? (100 * score.value).toFixed(2) + unit : score.value.toPrecision(4);
}

function intervalText(score) {
  if (!known(score.low) || !known(score.high)) return "–";
  return [score.low, score.high].map((value) => scoreText({ ...score, value }, "")).join(" – ");
}

// -- charts

function marker(shape, x, y, size, attributes) {
  const paths = {
    square: `M${x - size},${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
    up: `M${x},${y - size * 1.2}L${x + size * 1.15},${y + size * 0.9}H${x - size * 1.15}z`,
    down: `M${x},${y + size * 1.2}L${x + size * 1.15},${y - size * 0.9}H${x - size * 1.15}z`,
    diamond: `M${x},${y - size * 1.3}L${x + size * 1.3},${y}L${x},${y + size * 1.3}L${x - size * 1.3},${y}z`,
    cross: `M${x - size},${y - size}L${x + size},${y + size}M${x - size},${y + size}L${x + size},${y - size}`,
  };
  if (shape === "circle") return svg("circle", { cx: x, cy: y, r: size, ...attributes });
  const line = shape === "cross" ? { stroke: attributes.fill, "stroke-width": 2.2 } : {};
  return svg("path", { d: paths[shape], ...attributes, ...line });
}

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const factor = [1, 2, 2.5, 5, 10].find((each) => each * power >= raw * 0.999);
  const step = factor * power;
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (factor === 2.5 ? 1 : 0));
  const found = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-6; number++) {
    found.push({ at: number * step, text: (number * step).toFixed(Math.min(places, 8)) });
  }
  return found;
}

function domain(values, pad) {
  const finite = values.filter(known);
  const low = Math.min(...finite), high = Math.max(...finite);
  const room = (high - low || Math.abs(high) || 1) * pad;
  return [low - room, high + room];
}

/** Where numbers lie in a picture of this size. */
function scales(spec, width, height) {
  const box = { left: 50, right: width - 16, top: spec.speeds ? 56 : 30, bottom: height - 44 };
  const points = spec.series.flatMap((series) => series.points);
  const across = (spec.across || []).map((line) => line.y);
  const xs = domain([...points.map((point) => point.x), ...(spec.include || [])], 0.05);
  const ys = domain([...points.flatMap((point) => [point.y, point.low, point.high]), ...across], 0.08);
  if (spec.diagonal) {
    xs[0] = ys[0] = Math.min(xs[0], ys[0]);
    xs[1] = ys[1] = Math.max(xs[1], ys[1]);
  }
  const px = (x) => box.left + ((x - xs[0]) / (xs[1] - xs[0])) * (box.right - box.left);
  const py = (y) => box.bottom - ((y - ys[0]) / (ys[1] - ys[0])) * (box.bottom - box.top);
  const back = (at) => xs[0] + ((at - box.left) / (box.right - box.left)) * (xs[1] - xs[0]);
  return { box, xs, ys, px, py, back, width };
}

/**
 * One chart. spec: label, x and y (titles), series [{name, look, points [{x, y, low, high, tip}], line, dash, small, bare}],
 * and optionally across [{y, name}], at (an upright line), diagonal, speeds (original ms: an upper axis), include, pick.
 */
function chart(host, spec) {
  const width = Math.max(240, host.clientWidth), height = width < 520 ? 280 : 340;
  const scale = scales(spec, width, height), { box, px, py } = scale;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.label });
  const rule = (x1, y1, x2, y2, dash) =>
    svg("line", { x1, y1, x2, y2, stroke: "var(--control)", "stroke-dasharray": dash || "5 4" });
  picture.append(...axes(spec, scale));
  for (const line of spec.across || []) picture.append(rule(box.left, py(line.y), box.right, py(line.y), line.dash));
  if (spec.diagonal) picture.append(rule(box.left, box.bottom, box.right, box.top));
  if (known(spec.at)) {
    picture.append(svg("line", { class: "budget", x1: px(spec.at), x2: px(spec.at), y1: box.top, y2: box.bottom }));
  }
  for (const series of spec.series) picture.append(...drawSeries(series, scale));
  if (spec.pick) {
    picture.style.cursor = "pointer";
    picture.addEventListener("click", (event) => {
      const { left, width: wide } = picture.getBoundingClientRect();
      spec.pick(scale.back(((event.clientX - left) / wide) * width));
    });
  }
  host.replaceChildren(picture, chartLegend(spec));
}

function axes(spec, { box, xs, ys, px, py, width }) {
  const parts = [];
  const text = (x, y, anchor, content, soft = true) =>
    parts.push(svg("text", { class: soft ? "soft" : null, x, y, "text-anchor": anchor }, content));
  const line = (name, x1, y1, x2, y2) => parts.push(svg("line", { class: name, x1, y1, x2, y2 }));
  for (const tick of ticks(ys[0], ys[1], 6)) {
    line("grid", box.left, py(tick.at), box.right, py(tick.at));
    text(box.left - 8, py(tick.at) + 4, "end", tick.text);
  }
  for (const tick of ticks(xs[0], xs[1], width < 520 ? 4 : 8)) {
    line("axis", px(tick.at), box.bottom, px(tick.at), box.bottom + 5);
    text(px(tick.at), box.bottom + 19, "middle", tick.text);
  }
  line("axis", box.left, box.bottom, box.right, box.bottom);
  text(box.right, box.bottom + 38, "end", spec.x, false);
  text(0, 14, "start", spec.y, false);
  if (!spec.speeds) return parts;
  text(box.right, 14, "end", "speed-up");
  let last = Infinity;
  for (const speed of SPEEDS) {
    const at = px(spec.speeds / speed);
    if (at < box.left || at > box.right || last - at < 40) continue; // labels would touch
    last = at;
    line("axis", at, box.top - 5, at, box.top);
    text(at, box.top - 9, "middle", `${speed}×`);
  }
  return parts;
}

function drawSeries(series, { px, py }) {
  const { colour, shape } = series.look, parts = [];
  const drawn = series.points.filter((point) => known(point.x) && known(point.y));
  if (series.line && drawn.length > 1) {
    const join = ({ x, y }, place) => {
      if (!place) return `M${px(x)},${py(y)}`;
      return series.line === "step" ? `H${px(x)}V${py(y)}` : `L${px(x)},${py(y)}`;
    };
    const look = { stroke: colour, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": series.dash || null };
    parts.push(svg("path", { d: drawn.map(join).join(""), fill: "none", ...look }));
  }
  for (const point of series.bare ? [] : series.last ? drawn.slice(-1) : drawn) {
    const x = px(point.x);
    if (known(point.low) && known(point.high)) {
      const low = py(point.low), high = py(point.high), d = `M${x},${low}V${high}M${x - 4},${low}h8M${x - 4},${high}h8`;
      parts.push(svg("path", { d, stroke: colour, "stroke-width": 1.2, fill: "none" }));
    }
    const ring = { fill: colour, stroke: "var(--paper)", "stroke-width": 1.2 };
    const mark = marker(shape, x, py(point.y), series.small || 5.2, series.small ? { fill: colour, opacity: 0.6 } : ring);
    mark.append(svg("title", {}, point.tip || series.name));
    parts.push(mark);
  }
  return parts;
}

function chartLegend(spec) {
  const dashed = (stroke, dash, wide) =>
    svg("line", { x1: 0, x2: 30, y1: 9, y2: 9, stroke, "stroke-width": wide, "stroke-dasharray": dash || null });
  const row = (name, ...parts) =>
    el("li", {}, svg("svg", { viewBox: "0 0 30 18", "aria-hidden": "true" }, parts), name);
  const rows = spec.series.filter((series) => !series.silent).map((series) => {
    const { colour, shape } = series.look;
    const mark = series.bare ? null : marker(shape, 15, 9, 4.6, { fill: colour });
    return row(series.name, series.line ? dashed(colour, series.dash, 2) : null, mark);
  });
  for (const line of spec.across || []) rows.push(row(line.name, dashed("var(--control)", line.dash || "5 4", 1)));
  return el("ul", { class: "legend", "aria-label": "Legend" }, rows);
}

// -- tables

/** rows: cells of the first column are headings; a cell is text, or {text, class, colour}. */
function table(title, headings, rows) {
  const cell = (value, place) => {
    const given = typeof value === "object" && value !== null ? value : { text: value };
    const key = given.colour ? el("span", { class: "key", style: { background: given.colour } }) : null;
    return el(place ? "td" : "th", { class: given.class, scope: place ? null : "row" }, key, String(given.text));
  };
  const head = el("tr", {}, headings.map((heading) => el("th", { scope: "col" }, heading)));
  const body = el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))));
  const whole = el("table", { "aria-label": title }, el("thead", {}, head), body);
  return el("div", { class: "scroll", "data-title": title }, whole);
}

const folded = (title, content) => el("details", {}, el("summary", {}, title), content);

/** Only what really scrolls sideways is a stop for the Tab key. */
function markScrollables() {
  for (const box of document.querySelectorAll(".scroll")) {
    const scrolls = box.scrollWidth > box.clientWidth + 1;
    for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", box.dataset.title]]) {
      if (scrolls) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }
}
