// The network before and after: layers in rows, one lane for the original and one for each method shown.

const LANE = { label: 15, glyph: 30, bars: 18, gap: 9 };
const LANE_HEIGHT = LANE.label + LANE.glyph + LANE.bars + LANE.gap;

/** Layers flow like text: as many rows as the width needs, all of the same length. */
function layout(count, lanes, width) {
  const rows = Math.ceil(count / Math.floor(width / 26));
  const perRow = Math.ceil(count / rows), height = lanes * LANE_HEIGHT;
  return { rows, perRow, cell: Math.min(52, width / perRow), height, pitch: height + 36 };
}

function rowOf(facts, row, grid) {
  const first = row * grid.perRow;
  return { first, end: Math.min(facts.layers.length, first + grid.perRow), at: (layer) => (layer - first + 0.5) * grid.cell };
}

/** A conv: larger for larger kernels, a square where channels mix, a circle where they do not, a wedge where it strides. */
function glyph(item, x, y) {
  const size = (11 + 2.6 * Math.min(5, Math.max(...item.kernel))) / 2;
  const [high, wide] = item.kernel, rx = item.groups > 1 ? size : 3;
  const parts = [svg("rect", { class: item.kind, x: x - size, y: y - size, width: 2 * size, height: 2 * size, rx })];
  if (item.kind === "removed") return parts;
  const text = high === wide ? `${high}` : `${high}·${wide}`;
  parts.push(svg("text", { class: high === wide ? "on-kept" : "on-kept tight", x, y: y + 4, "text-anchor": "middle" }, text));
  if (Math.max(...item.stride) > 1) parts.push(svg("path", { class: "strided", d: `M${x - 4},${y + size + 1.5}h8l-4,4.5z` }));
  return parts;
}

/** The part of a merged range that lies in this row; dots mark what was kept in it, rings what was dropped. */
function pill(item, from, to, at, y, cell) {
  const left = at(from) - cell / 2 + 2, right = at(to - 1) + cell / 2 - 2, middle = (left + right) / 2;
  const name = right - left < 28 ? `${Math.max(...item.kernel)}` : kernel(item.kernel);
  const parts = [
    svg("rect", { class: "merged", x: left, y: y - 14, width: right - left, height: 28, rx: 7 }),
    svg("text", { class: "on", x: middle, y: y + 1.5, "text-anchor": "middle" }, name),
  ];
  for (let layer = from; layer < to; layer++) {
    const kept = item.kept.includes(layer);
    parts.push(svg("circle", { class: kept ? "dot" : "hole", cx: at(layer), cy: y + 8.5, r: kept ? 2.4 : 2.1 }));
  }
  return parts;
}

function drawLane(facts, lane, row, top, grid, slowest) {
  const { first, end, at } = rowOf(facts, row, grid);
  const middle = top + LANE.label + LANE.glyph / 2, floor = top + LANE.label + LANE.glyph + LANE.bars;
  const reached = lane.items.length > 0;
  const parts = [svg("text", { class: "lane", x: 0, y: top + 9 }, reached ? lane.name : `${lane.name}: out of reach`)];
  if (!reached) return parts;
  parts.push(svg("line", { class: "wire", x1: 0, x2: at(end - 1) + grid.cell / 2, y1: middle, y2: middle }));
  for (const item of lane.items) {
    const from = Math.max(first, item.start), to = Math.min(end, item.end);
    if (from >= to) continue;
    if (item.kind === "merged") parts.push(...pill(item, from, to, at, middle, grid.cell));
    for (let layer = from; layer < to && item.kind !== "merged"; layer++) {
      parts.push(...glyph({ ...facts.layers[layer], kind: item.kind }, at(layer), middle));
    }
    if (known(item.ms) && item.ms > 0 && from === item.start) {
      const tall = Math.max(1, (item.ms / slowest) * (LANE.bars - 5)), x = (at(from) + at(to - 1)) / 2 - 5;
      parts.push(svg("rect", { class: "ms", x, y: floor - tall, width: 10, height: tall, rx: 1.5 }));
    }
  }
  return parts;
}

/** Where the size of the feature maps changes, the size is written above. */
function stageMarks(facts, row, top, grid) {
  const { first, end } = rowOf(facts, row, grid), parts = [];
  const sizes = facts.layers.map((layer) => map(layer.output_shape));
  for (let layer = first; layer < end; layer++) {
    if (layer > first && sizes[layer] === sizes[layer - 1]) continue;
    let next = layer;
    while (next < end && sizes[next] === sizes[layer]) next++;
    const x = (layer - first) * grid.cell;
    const dashes = { class: "axis", x1: x, x2: x, y1: top - 16, y2: top + grid.height - 6, "stroke-dasharray": "2 3" };
    if (layer > first) parts.push(svg("line", dashes));
    if ((next - layer) * grid.cell < 44) continue; // no room to write it
    parts.push(svg("text", { class: "lane", x: x + (layer > first ? 5 : 0), y: top - 8 }, sizes[layer]));
  }
  return parts;
}

// -- what is said of a layer

function fate(lane, layer) {
  const item = lane.items.find((each) => each.start <= layer && layer < each.end);
  if (!item) return "out of reach";
  const range = item.end - item.start > 1 ? `#${item.start} to #${item.end - 1}` : `#${item.start}`;
  const cost = known(item.ms) ? `, ${ms(item.ms)}` : "";
  const cheaper = item.replaced === "activation" ? ", with a cheaper activation" : "";
  if (item.kind === "kept") return `kept${cheaper || " as it is"}${cost}`;
  if (item.replaced === "gate") return `the gate of ${range} is replaced by its mean${cost}`;
  if (item.kind === "removed") return item.end - item.start > 1 ? `removed with ${range}` : "removed";
  const own = item.kept.includes(layer) ? "" : "removed; ";
  return `${own}${range} merge into one ${kernel(item.kernel)}${cheaper}${cost}`;
}

function geometry(layer) {
  const parts = [`${kernel(layer.kernel)} conv`, `${layer.input_shape[0]} to ${layer.output_shape[0]} channels`];
  if (layer.groups > 1) parts.push(`${layer.groups} groups`);
  if (Math.max(...layer.stride) > 1) parts.push(`stride ${layer.stride[0]}`);
  parts.push(`map ${map(layer.output_shape)}`);
  if (known(layer.latency_ms)) parts.push(ms(layer.latency_ms));
  return parts.join(", ");
}

function menuText(facts, place) {
  const layer = facts.layers[place];
  const ways = facts.candidates.filter((each) => each.start <= place && place < each.end).length;
  const can = layer.fixed ? "outside the table" : layer.removable ? "can be removed" : "cannot be removed by itself";
  return `${can}; ${plural(ways, "candidate")} for it on the menu`;
}

function selectLayer(place, focus) {
  const facts = run();
  state.layer = Math.max(0, Math.min(facts.layers.length - 1, place));
  const layer = facts.layers[state.layer];
  for (const node of document.querySelectorAll("#diagram .layer")) {
    const own = Number(node.dataset.layer) === state.layer;
    node.setAttribute("aria-selected", String(own));
    node.setAttribute("tabindex", own ? "0" : "-1");
    if (own && focus) node.focus();
  }
  const number = el("span", { class: "muted" }, ` · #${state.layer} of ${plural(facts.layers.length, "layer")}`);
  const fates = lanesOf(facts).slice(1).map((lane) =>
    el("p", {}, el("span", { class: "muted" }, `${lane.name}: `), fate(lane, state.layer)));
  const menu = el("p", { class: "muted" }, menuText(facts, state.layer));
  show("details", el("p", {}, el("strong", {}, layer.name), number), el("p", {}, geometry(layer)), fates, menu);
}

// -- the whole

function layerColumn(facts, lanes, place, grid) {
  const layer = facts.layers[place], row = Math.floor(place / grid.perRow);
  const fates = lanes.slice(1).map((lane) => `${lane.name}: ${fate(lane, place)}`);
  const size = { x: (place - row * grid.perRow) * grid.cell, y: row * grid.pitch + 20, width: grid.cell, height: grid.height - 4 };
  const label = [layer.name, geometry(layer), ...fates].join(". ");
  const attributes = { class: "layer", role: "option", "data-layer": place, "aria-label": label, tabindex: -1 };
  return svg("g", attributes, svg("rect", { class: "column", rx: 6, ...size }));
}

function drawDiagram(facts, lanes) {
  const host = byId("diagram"), focused = host.contains(document.activeElement);
  const width = Math.max(240, host.clientWidth), grid = layout(facts.layers.length, lanes.length, width);
  const height = grid.rows * grid.pitch - 10;
  const slowest = Math.max(1e-9, ...lanes.flatMap((lane) => lane.items.map((item) => item.ms || 0)));
  const label = "Layers of the network; arrow keys move from one to the next";
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "listbox", "aria-label": label });
  const drawing = svg("g", { "aria-hidden": "true", "pointer-events": "none" });
  for (let row = 0; row < grid.rows; row++) {
    const top = row * grid.pitch + 20;
    drawing.append(...stageMarks(facts, row, top, grid));
    lanes.forEach((lane, place) => drawing.append(...drawLane(facts, lane, row, top + place * LANE_HEIGHT, grid, slowest)));
  }
  picture.append(...facts.layers.map((_, place) => layerColumn(facts, lanes, place, grid)), drawing);
  state.perRow = grid.perRow;
  host.replaceChildren(picture);
  selectLayer(state.layer, focused);
}

/** Listens on the box around the picture: a browser makes an SVG element that listens for focus a stop of its own. */
function listenToDiagram() {
  const host = byId("diagram");
  host.addEventListener("keydown", (event) => {
    const count = run().layers.length, row = state.perRow;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -count, End: count };
    if (!(event.key in moves)) return;
    event.preventDefault();
    selectLayer(state.layer + moves[event.key], true);
  });
  for (const kind of ["mouseover", "focusin", "click"]) {
    host.addEventListener(kind, (event) => {
      const node = event.target.closest(".layer");
      if (node && Number(node.dataset.layer) !== state.layer) selectLayer(Number(node.dataset.layer), false);
    });
  }
}

function drawDiagramLegend() {
  const sample = (text, ...parts) =>
    el("li", {}, svg("svg", { viewBox: "0 0 30 18", "aria-hidden": "true" }, parts), text);
  const square = (kind, rx) => svg("rect", { class: kind, x: 7, y: 1, width: 16, height: 16, rx });
  const three = svg("text", { class: "on-kept", x: 15, y: 13, "text-anchor": "middle" }, "3");
  const pillSample = [
    svg("rect", { class: "merged", x: 0, y: 0, width: 30, height: 18, rx: 6 }),
    svg("circle", { class: "dot", cx: 9, cy: 9, r: 2.4 }),
    svg("circle", { class: "hole", cx: 21, cy: 9, r: 2.1 }),
  ];
  show(
    "diagram-legend",
    sample("kept, with its kernel size", square("kept", 3), three),
    sample("grouped or depthwise", square("kept", 8)),
    sample("strided", svg("path", { class: "strided", d: "M10,6h10l-5,6z" })),
    sample("removed", square("removed", 3)),
    sample("merged into one: dots were kept, rings dropped", ...pillSample),
    sample("latency", svg("rect", { class: "ms", x: 10, y: 3, width: 10, height: 15, rx: 1.5 })),
  );
}
