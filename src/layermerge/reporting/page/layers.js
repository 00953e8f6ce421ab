// What is said of a layer: its candidates, ranked. And the table of layers: sorted, searched, saved as CSV.

/** By run and layer: the cell that says what becomes of it. */
const FATES = RUNS.map(() => []);

/** What is saved for what it costs: what costs nothing first, then by the ratio; what was not measured and what saves nothing last. */
function worth({ saved_ms: saved, change }, scale) {
  if (!known(saved)) return -1e12;
  if (saved <= 0) return saved;
  return known(change) ? saved / Math.max(scale * change, 1e-9) : 0;
}

function candidateRows(facts, place) {
  const { scale, digits: figures } = part("network").dataset;
  const own = facts.candidates.filter(({ candidate }) => candidate.start <= place && place < candidate.end);
  const ranked = own.sort((one, other) => worth(other, Number(scale)) - worth(one, Number(scale)));
  return ranked.map((each) => {
    const lost = known(each.change) ? (Number(scale) * each.change + 0).toFixed(Number(figures)) : "not measured";
    const cells = [el("td", { class: "words" }, each.words), el("td", { "data-sort": each.latency_ms ?? -1 }, ms(each.latency_ms)),
      el("td", { "data-sort": each.saved_ms ?? -1e9 }, ms(each.saved_ms)),
      el("td", { "data-sort": known(each.change) ? Number(scale) * each.change : 1e9 }, lost), el("td", { class: "mark" })];
    return el("tr", { "data-place": facts.candidates.indexOf(each) }, cells);
  });
}

/** Which of the candidates shown is chosen at the budget. */
function drawChosen(facts, fate) {
  const stop = stopNow(), box = part("details");
  if (!stop || !fate) return;
  box.querySelector(".fate").textContent = `At ${spaced(stop.budget)}: ${fate.words}.`;
  box.querySelector("thead tr").lastChild.textContent = `at ${spaced(stop.budget)}`;
  for (const row of box.querySelector("tbody").rows) {
    const own = facts.candidates[row.dataset.place] === fate;
    if (row.classList.contains("chosen") === own) continue;
    row.classList.toggle("chosen", own);
    row.lastChild.textContent = own ? "chosen" : "";
  }
}

function selectLayer(place, focus = false) {
  const facts = run(), count = facts.layers.length, stop = stopNow(), box = part("details");
  const chosen = (state.layer[state.run] = Math.max(0, Math.min(count - 1, place)));
  const { layer, latency_ms: taken } = facts.layers[chosen], fate = stop && fatesOf(facts, stop)[chosen];
  const move = (text, name, by) => button(text, name, () => selectLayer(chosen + by, by));
  const moves = [move("‹ previous", "Previous layer", -1), move("next ›", "Next layer", 1)];
  moves[0].disabled = chosen === 0;
  moves[1].disabled = chosen === count - 1;
  const head = el("p", { class: "layer-head" }, el("strong", {}, layer.name), el("span", { class: "muted" }, ` layer ${chosen} of ${count}, ${ms(taken)}`),
    el("span", { class: "moves" }, moves));
  const { change, explanation } = part("network").dataset;
  const headings = ["what can be done, best trade first", "latency then", "saves", change];
  const body = el("tbody", {}, candidateRows(facts, chosen));
  const table = el("table", { "aria-label": `Candidates of ${layer.name}` },
    el("thead", {}, el("tr", {}, headings.map((text) => el("th", { scope: "col" }, text)), el("th", { scope: "col", class: "live" }, "chosen"))), body);
  box.replaceChildren(head, el("p", { class: "fate" }), el("div", { class: "scroll tall", "data-title": `Candidates of ${layer.name}` }, table),
    el("p", { class: "muted small" }, explanation));
  makeSortable(table);
  drawChosen(facts, fate);
  for (const node of all("[data-layer]", part("network"))) node.classList.toggle("selected", Number(node.dataset.layer) === chosen);
  markScrollables();
  if (focus) moves[focus < 0 ? 0 : 1].focus();
  return box;
}

// -- tables

const sortKey = (cell) => (cell.dataset.sort !== undefined ? Number(cell.dataset.sort) : cell.textContent);

function sortBy(table, column, heading) {
  const down = heading.getAttribute("aria-sort") !== "descending";
  const order = (one, other) => (typeof one === "number" && typeof other === "number"
    ? one - other : String(one).localeCompare(String(other), "en", { numeric: true }));
  const rows = [...table.tBodies[0].rows].sort((one, other) =>
    (down ? -1 : 1) * order(sortKey(one.cells[column]), sortKey(other.cells[column])));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  table.tBodies[0].append(...rows);
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    if (heading.classList.contains("live")) return; // its text follows the slider
    const press = el("button", { type: "button", class: "sort" }, ...heading.childNodes);
    press.addEventListener("click", () => sortBy(table, column, heading));
    heading.append(press);
  });
}

function csvOf(table) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return [...table.rows].map((row) => [...row.cells].map((cell) => quoted(cell.textContent)).join(",")).join("\n") + "\n";
}

/** Layer names open their layer; above the table, a search and the CSV. */
function prepareLayers(facts, place) {
  const table = part("layers", place), rows = [...table.tBodies[0].rows];
  rows.forEach((row, layer) => {
    const open = el("button", { type: "button", class: "link", "data-layer": layer }, row.cells[1].textContent);
    row.cells[1].replaceChildren(open);
    FATES[place].push(row.cells[6]);
  });
  makeSortable(table);
  const search = el("input", { type: "search", "aria-label": "Search layers", placeholder: "Search layers" });
  const count = el("span", { class: "muted small", role: "status" });
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !`${row.cells[1].textContent} ${row.cells[2].textContent}`.toLowerCase().includes(wanted);
    count.textContent = wanted ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} layers` : "";
  });
  const save = button("CSV", "Save the table as CSV", () => download(csvOf(table), "text/csv", `${facts.name}-layers.csv`));
  table.closest(".scroll").before(el("div", { class: "tools" }, search, count, save));
  part("network", place).addEventListener("click", (event) => {
    const node = event.target.closest("[data-layer]");
    if (!node) return;
    const box = selectLayer(Number(node.dataset.layer));
    if (node.tagName === "BUTTON") box.scrollIntoView({ block: "nearest" });
  });
}

/** Only what really scrolls is a stop for the Tab key. */
function markScrollables() {
  for (const box of document.querySelectorAll(".scroll")) {
    const scrolls = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
    for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", box.dataset.title]]) {
      if (scrolls) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }
}
