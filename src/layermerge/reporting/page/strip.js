// The lower lane of the strip for another budget, and the colours of the upper one; drawn as html/network.py draws them.

const LANE = 38, GAP = 34;
const percent = (value) => `${+value.toFixed(3)}%`;

function segment(x, width, kind, text, tip, layer) {
  const box = svg("rect", { class: `seg ${kind}`, x: percent(x), y: 0, width: percent(width), height: LANE, "data-layer": layer });
  box.append(svg("title", {}, tip));
  if (width < 3.2) return [box];
  const look = `in ${kind}${width < 9 ? " tight" : ""}`;
  return [box, svg("text", { class: look, x: percent(x + width / 2), y: LANE / 2 + 4, "text-anchor": "middle" }, text)];
}

/** Where the layers of the original begin, in milliseconds; one number more than there are layers. */
function edges(facts) {
  const timed = facts.layers.some((layer) => layer.latency_ms), scale = Number(part("strip").dataset.scale);
  const found = [0];
  for (const layer of facts.layers) found.push(found[found.length - 1] + (timed ? scale * (layer.latency_ms || 0) : 1));
  return found;
}

function joined(facts, pieces, full) {
  const from = edges(facts);
  const shapes = pieces.filter((piece) => piece.kind === "merged").map(({ at, width, candidate }) => {
    const corners = [[from[candidate.start], 0], [from[candidate.end], 0], [at + width, GAP], [at, GAP]];
    return svg("polygon", { points: corners.map(([x, y]) => `${((100 * x) / full).toFixed(3)},${y}`).join(" ") });
  });
  const box = { x: 0, y: -GAP, width: "100%", height: GAP, viewBox: `0 0 100 ${GAP}`, preserveAspectRatio: "none" };
  return svg("svg", { class: "joined", ...box }, shapes);
}

/** The parts of the compressed network, scaled to the latency that is shown. */
function piecesOf(facts, stop) {
  const parts = stop.candidates.map((place) => facts.candidates[place]);
  const whole = parts.reduce((sum, each) => sum + (each.latency_ms || 0), 0) + (facts.fixed_ms || 0);
  const scale = whole > 0 ? stop.latency_ms / whole : 1;
  const pieces = [];
  let at = 0;
  for (const each of parts) {
    const width = scale * (each.latency_ms || 0);
    if (width <= 0) continue;
    pieces.push({ at, width, kind: keepsLayer(each) ? "kept" : "merged", candidate: each.candidate, words: each.words });
    at += width;
  }
  if (facts.fixed_ms) pieces.push({ at, width: scale * facts.fixed_ms, kind: "fixed", candidate: null, words: "fixed cost" });
  return pieces;
}

function drawStrip(facts, stop, fates) {
  const full = Number(part("strip").dataset.full), pieces = piecesOf(facts, stop);
  const drawn = pieces.flatMap(({ at, width, kind, candidate, words }) => {
    const text = candidate ? (candidate.spec ? candidate.spec.kernel.join("×") : "") : "fixed";
    const name = kind === "kept" ? `${candidate.layers[0]}: ` : "";
    const x = (100 * at) / full;
    return segment(x, (100 * width) / full, kind, text, `${name}${words}, ${ms(width)}`, candidate && candidate.start);
  });
  const saved = facts.original_ms ? `: ${share(1 - stop.latency_ms / facts.original_ms)} saved` : "";
  const label = `at ${spaced(stop.budget)}, ${ms(stop.latency_ms)} ${stop.measured ? "measured" : "predicted"}${saved}`;
  within("strip", "after").replaceChildren(
    joined(facts, pieces, full), ...drawn, svg("text", { x: "0%", y: LANE + 16, "data-part": "after-label" }, label));
  for (const box of within("strip", "before").querySelectorAll("rect[data-layer]")) {
    const layer = Number(box.dataset.layer);
    box.setAttribute("class", `seg ${kindOf(fates[layer], layer)}`);
    const text = box.nextElementSibling;
    if (text && text.tagName === "text") {
      text.setAttribute("class", text.getAttribute("class").replace(/kept|merged|removed/, kindOf(fates[layer], layer)));
    }
  }
}
