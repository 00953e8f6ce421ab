// The slider and what follows it, the choice of run and colours, and the start.

/** The line of the budget in the chart, and a ring at what is known or expected there. */
function moveLine(facts, stop) {
  const picture = part("main-chart")?.querySelector("svg");
  if (!picture) return;
  const { x0, x1, y0, y1, left, right, top, bottom } = Object.fromEntries(Object.entries(picture.dataset).map(([name, value]) => [name, Number(value)]));
  const across = (x) => `${Math.max(left, Math.min(right, left + ((x - x0) / (x1 - x0)) * (right - left)))}%`;
  const line = within("main-chart", "live-line"), ring = within("main-chart", "live-ring");
  for (const end of ["x1", "x2"]) line.setAttribute(end, across(stop.budget_ms));
  const measured = stop.result === null ? null : facts.results[stop.result].report.score.value;
  const value = measured ?? stop.estimated?.value, scale = facts.original_score?.kind === "share" ? 100 : 1;
  ring.toggleAttribute("hidden", !known(value));
  if (known(value)) fill(ring, { x: across(stop.latency_ms), y: bottom - ((scale * value - y0) / (y1 - y0)) * (bottom - top) }, []);
  within("main-chart", "live").removeAttribute("hidden");
}

/** The figures of a budget are those of its row in the table of all budgets. */
function drawNow() {
  const table = part("all-budgets").querySelector(`table[data-method="${state.method[state.run]}"]`);
  const cells = [...table.tBodies[0].rows[state.stop[state.run]].cells].map((cell) => cell.textContent);
  all("dd", part("figures")).forEach((node, place) => { node.textContent = cells[place]; });
  part("command").querySelector("code").textContent = stopNow().command;
  const slider = part("budget");
  fill(slider, { max: stops().length - 1, "aria-valuetext": `${cells[0]}, ${cells[1]}` }, []);
  slider.value = String(state.stop[state.run]);
  part("budget-text").textContent = cells[0];
}

function draw() {
  const facts = run(), stop = stopNow();
  if (!stop) return;
  const fates = fatesOf(facts, stop);
  drawNow();
  moveLine(facts, stop);
  drawStrip(facts, stop, fates);
  within("went", "at").textContent = `At ${spaced(stop.budget)}. `;
  within("went", "went").textContent = stop.went;
  within("time", "time").textContent = stop.time;
  const table = part("layers"), heading = table.tHead.rows[0].cells[6];
  (heading.querySelector("button") || heading).textContent = `at ${spaced(stop.budget)}`;
  FATES[state.run].forEach((cell, layer) => {
    const words = fates[layer] ? fates[layer].words : "–";
    if (cell.firstChild.data !== words) cell.firstChild.data = words; // laying out a long table is what takes time
  });
  if (state.layer[state.run] !== null) drawChosen(facts, fates[state.layer[state.run]]);
}

function moveTo(stop) {
  state.stop[state.run] = stop;
  draw();
}

/** The stop of a budget as it is typed, or the nearest. */
function moveToBudget(budget) {
  const exact = stops().findIndex((stop) => stop.budget === budget);
  const wanted = (Number.parseFloat(budget) / 100) * run().original_ms;
  const off = (place) => Math.abs(stops()[place].budget_ms - wanted);
  moveTo(exact >= 0 ? exact : stops().reduce((best, _, place) => (off(place) < off(best) ? place : best), 0));
}

function chooseMethod(method) {
  const { budget } = stopNow();
  state.method[state.run] = method;
  moveToBudget(budget);
}

function pickFromChart(event) {
  const picture = event.currentTarget, { x0, x1, left, right } = picture.dataset;
  const box = picture.getBoundingClientRect(), at = (100 * (event.clientX - box.left)) / box.width;
  const value = Number(x0) + ((at - left) / (right - left)) * (x1 - x0);
  const off = (place) => Math.abs(stops()[place].budget_ms - value);
  if (stops().length) moveTo(stops().reduce((best, _, place) => (off(place) < off(best) ? place : best), 0));
}

// -- runs, colours, folded parts

function prepareRun(facts, place) {
  const slider = part("budget", place), method = part("method", place);
  prepareLayers(facts, place);
  state.method[place] = method ? Number(method.value) : Math.max(0, facts.methods.findIndex((each) => each.stops.length));
  if (!slider) return;
  state.stop[place] = Number(slider.value);
  slider.addEventListener("input", () => moveTo(Number(slider.value)));
  method?.addEventListener("change", () => chooseMethod(Number(method.value)));
  part("main-chart", place)?.querySelector("svg").addEventListener("click", pickFromChart);
}

function openRun(place) {
  state.run = place;
  RUNS.forEach((_, other) => { part("run-part", other).hidden = other !== place; });
  draw();
  markScrollables();
}

const THEMES = { auto: "as the system", light: "light", dark: "dark" };

function setTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  const press = byId("theme");
  press.textContent = theme[0].toUpperCase() + theme.slice(1);
  press.dataset.now = theme;
  press.setAttribute("aria-label", `${press.textContent}: colours ${THEMES[theme]}`);
  try { localStorage.setItem("layermerge-theme", theme); } catch { /* a page from a file may not be allowed to remember */ }
}

/** A link to a folded part opens it. */
function openTarget() {
  const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
  for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
}

/** On paper everything is open; afterwards as before. */
function openForPrint() {
  const closed = all("details:not([open])");
  for (const node of closed) {
    node.dataset.group = node.getAttribute("name") || "";
    node.removeAttribute("name"); // of a group only one may be open
    node.open = true;
  }
  window.addEventListener("afterprint", () => {
    for (const node of closed) {
      node.open = false;
      if (node.dataset.group) node.setAttribute("name", node.dataset.group);
    }
  }, { once: true });
}

function start() {
  for (const node of all(".script")) node.hidden = false;
  let theme = null;
  try { theme = localStorage.getItem("layermerge-theme"); } catch { /* as above */ }
  setTheme(theme in THEMES ? theme : "auto");
  const order = Object.keys(THEMES);
  byId("theme").addEventListener("click", () => setTheme(order[(order.indexOf(byId("theme").dataset.now) + 1) % 3]));
  byId("run").append(...RUNS.map((facts, place) => el("option", { value: place }, facts.name)));
  byId("run-choice").hidden = RUNS.length < 2;
  byId("run").addEventListener("change", (event) => openRun(Number(event.target.value)));
  all("figure.chart").forEach(addPictureTools);
  document.addEventListener("click", (event) => {
    const copy = event.target.closest(".copy"), budget = event.target.closest("[data-budget]");
    if (copy) copyCode(copy);
    if (budget) moveToBudget(budget.dataset.budget);
  });
  document.addEventListener("toggle", markScrollables, true);
  window.addEventListener("resize", markScrollables);
  window.addEventListener("hashchange", openTarget);
  window.addEventListener("beforeprint", openForPrint);
  RUNS.forEach(prepareRun);
  openRun(0);
  openTarget();
}

start();
