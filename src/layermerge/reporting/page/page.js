// What follows the slider, the controls, and the start.

function drawFigures(facts, lanes) {
  const layers = facts.layers.length;
  const score = scoreText(facts.original_score);
  const rows = [["original", ms(facts.original_ms), "1.00×", layers, 0, 0, score, "", "100.0 %", "measured"]];
  for (const { method, solution, items } of lanes.slice(1)) {
    const name = methodCell(facts, method.method);
    if (!solution) {
      const smallest = method.frontier.length ? `at least ${ms(method.frontier[0].latency_ms)}` : "out of reach";
      rows.push([name, smallest, ...Array(8).fill("")]);
      continue;
    }
    const kept = items.reduce((sum, item) => sum + item.kept.length, 0), left = items.filter((item) => item.kernel).length;
    const result = solution.chosen ? resultOf(facts, method.method, solution.budget_ms) : null;
    rows.push([
      name, ms(solution.latency_ms), times(facts.original_ms / solution.latency_ms), left, layers - kept, kept - left,
      scoreText(result && result.score), solution.importance.toFixed(3), share(solution.latency_ms / facts.original_ms),
      solution.chosen ? "measured" : "predicted",
    ]);
  }
  const counts = ["convs left", "removed", "merged away"];
  const test = `test score${state.label ? `, ${state.label}` : ""}`;
  const headings = ["at this budget", "latency", "speed-up", ...counts, test, "importance", "of original", "latency is"];
  show("figures", table("Figures at this budget", headings, rows));
}

/** One chart a method: what its points sum differs from method to method. */
function drawFrontiers(facts) {
  const stop = stopNow(), stops = stopsOf(facts), methods = shown().filter((method) => method.frontier.length);
  byId("frontier-title").hidden = byId("frontiers").hidden = !methods.length;
  const off = (place, at) => Math.abs(stops[place].ms - at);
  const nearest = (at) => stops.reduce((best, _, place) => (off(place, at) < off(best, at) ? place : best), 0);
  const hosts = methods.map(() => el("div", { class: "chart" }));
  show("frontiers", hosts);
  methods.forEach((method, place) => {
    const look = lookOf(facts, method.method), point = solutionAt(method, stop.ms);
    const inside = method.frontier.filter((each) => each.latency_ms <= facts.original_ms * 1.0001);
    const line = inside.map((each) => ({ x: each.latency_ms, y: each.importance }));
    const series = [{ name: `${method.method}, ${plural(method.points, "point")}`, look, bare: true, line: "step", points: line }];
    const now = point && { x: point.predicted_ms, y: point.importance, tip: `${method.method} at ${stop.text}` };
    if (now) series.push({ name: "at this budget", look, points: [now] });
    const label = `Importance against predicted latency: ${method.method}`;
    const titles = { label, x: "predicted latency (ms)", y: "importance" };
    const more = { at: stop.ms, include: [facts.original_ms], speeds: facts.original_ms, pick: (at) => moveTo(nearest(at)) };
    chart(hosts[place], { ...titles, ...more, series });
  });
}

function drawTime(facts, lanes) {
  const stages = [...new Set(facts.layers.map((layer) => map(layer.output_shape)))];
  const total = (parts) => parts.reduce((sum, part) => sum + part, 0);
  const sums = lanes.filter((lane) => lane.items.length).map((lane) => {
    const parts = stages.map((stage) =>
      total(lane.items.filter((item) => map(facts.layers[item.end - 1].output_shape) === stage).map((item) => item.ms || 0)));
    return { name: lane.name, parts: [...parts, facts.fixed_ms || 0] };
  });
  const longest = Math.max(...sums.map((lane) => total(lane.parts)));
  const there = known(facts.fixed_ms) && longest > 0;
  byId("time-title").hidden = byId("time").hidden = !there;
  if (!there) return;
  const shade = (place) => Math.round(100 - (78 * place) / stages.length);
  const colours = [...stages.map((_, place) => `color-mix(in srgb, var(--accent) ${shade(place)}%, var(--paper))`), "var(--bar)"];
  const bars = sums.map((lane) => {
    let x = 0;
    const parts = lane.parts.map((part, place) =>
      svg("rect", { class: "part", x: (x += part) - part, y: 0, width: part, height: 1, style: { fill: colours[place] } }));
    const bar = svg("svg", { viewBox: `0 0 ${longest} 1`, height: 22, preserveAspectRatio: "none", "aria-hidden": "true" }, parts);
    return el("div", {}, el("div", { class: "muted" }, `${lane.name}: ${ms(total(lane.parts))}`), bar);
  });
  const names = [...stages.map((stage) => `maps of ${stage}`), "what no candidate covers"];
  const rows = names.map((name, place) => [{ text: name, colour: colours[place] }, ...sums.map((lane) => ms(lane.parts[place]))]);
  const headings = ["by the latency table", ...sums.map((lane) => lane.name)];
  show("time", el("div", { class: "bars" }, bars), table("Where the time goes", headings, rows));
}

// -- controls

function options(id, names, chosen) {
  byId(id).replaceChildren(...names.map(([value, text]) => el("option", { value }, text)));
  byId(id).value = String(chosen);
}

function moveTo(stop) {
  state.stop = stop;
  drawLive();
}

/** Buttons for the budgets that the methods shown were really compressed to. */
function drawChips(stops) {
  const chosen = shown().flatMap((method) => method.choices);
  const isChosen = (stop) => chosen.some((choice) => same(choice.budget_ms, stop.ms));
  const places = stops.map((_, place) => place).filter((place) => isChosen(stops[place]));
  const focused = byId("chips").contains(document.activeElement) ? document.activeElement.dataset.stop : null;
  show("chips", places.map((place) => {
    const pressed = String(place === state.stop), label = `Budget ${stops[place].text}, chosen and measured`;
    const chip = el("button", { type: "button", "aria-pressed": pressed, "aria-label": label, "data-stop": place }, stops[place].text);
    chip.addEventListener("click", () => moveTo(place));
    return chip;
  }));
  if (focused !== null) byId("chips").querySelector(`[data-stop="${focused}"]`)?.focus(); // it was drawn anew
}

function drawControls(facts) {
  const stops = stopsOf(facts), stop = stopNow(), slider = byId("budget");
  byId("panel").hidden = byId("pickers").hidden = byId("explore-lead").hidden = !stop;
  if (!stop) return;
  slider.max = String(stops.length - 1);
  slider.value = String(state.stop);
  const text = `${share(stop.ms / facts.original_ms)} · ${ms(stop.ms)}`;
  slider.setAttribute("aria-valuetext", `${text} of ${ms(facts.original_ms)}`);
  byId("budget-text").textContent = text;
  drawChips(stops);
}

function drawLive() {
  const facts = run(), lanes = lanesOf(facts);
  drawControls(facts);
  drawFigures(facts, lanes);
  drawDiagram(facts, lanes);
  drawFrontiers(facts);
  drawTime(facts, lanes);
  markScrollables();
}

function drawAll() {
  const facts = run();
  drawHeadline(facts);
  drawRuns();
  drawLive();
  for (const draw of [drawAccuracy, drawPredicted, drawRecovery, drawCosts, drawReasons, drawHow]) draw(facts);
  markScrollables();
}

/** The way of fine-tuning that most results share. */
function commonLabel(facts) {
  const count = new Map();
  for (const { label } of [...facts.results, ...facts.curves]) count.set(label, (count.get(label) || 0) + 1);
  return [...count].sort((one, other) => other[1] - one[1]).map(([label]) => label);
}

/** Opens a run at the budget of its headline, its method beside another that reaches it. */
function openRun(place) {
  const facts = RUNS[place], best = bestOf(facts), labels = commonLabel(facts), stops = stopsOf(facts);
  const wanted = best ? best.budget_ms : 0.75 * facts.original_ms;
  const stop = Math.max(0, stops.findIndex((each) => each.ms >= wanted * (1 - 1e-9)));
  const a = Math.max(0, facts.methods.findIndex((method) => best && method.method === best.method));
  const b = facts.methods.findIndex((method, other) =>
    other !== a && method.objective === facts.methods[a].objective && solutionAt(method, stops[stop]?.ms ?? 0));
  Object.assign(state, { run: place, layer: 0, a, b, stop, label: labels[0] || "" });
  const names = facts.methods.map((method, index) => [index, method.method]);
  options("method-a", names, a);
  options("method-b", [[-1, "nothing"], ...names], b);
  options("label", labels.map((label) => [label, label]), state.label);
  byId("label-choice").hidden = labels.length < 2;
  drawAll();
}

const THEMES = { auto: "as the system", light: "light", dark: "dark" };

function setTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  const button = byId("theme");
  button.textContent = theme[0].toUpperCase() + theme.slice(1);
  button.dataset.now = theme;
  button.setAttribute("aria-label", `${button.textContent}: colours ${THEMES[theme]}`);
  try { localStorage.setItem("layermerge-theme", theme); } catch { /* a page from a file may not be allowed to remember */ }
}

function start() {
  let theme = null;
  try { theme = localStorage.getItem("layermerge-theme"); } catch { /* as above */ }
  setTheme(theme in THEMES ? theme : "auto");
  const order = Object.keys(THEMES);
  byId("theme").addEventListener("click", () => setTheme(order[(order.indexOf(byId("theme").dataset.now) + 1) % 3]));
  options("run", RUNS.map((facts, place) => [place, facts.name]), 0);
  byId("run-choice").hidden = RUNS.length < 2;
  byId("run").addEventListener("change", (event) => openRun(Number(event.target.value)));
  byId("budget").addEventListener("input", (event) => moveTo(Number(event.target.value)));
  for (const [id, name] of [["method-a", "a"], ["method-b", "b"]]) {
    byId(id).addEventListener("change", (event) => { state[name] = Number(event.target.value); drawLive(); });
  }
  byId("label").addEventListener("change", (event) => { state.label = event.target.value; drawAll(); });
  document.addEventListener("toggle", markScrollables, true);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone's address bar comes and goes
    width = window.innerWidth;
    drawAll();
  });
  listenToDiagram();
  drawDiagramLegend();
  openRun(0);
}

start();
