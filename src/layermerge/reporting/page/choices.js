// The runs' facts, what the page shows of them, and what is chosen at a budget.

/** A run's own records and what only the page knows of them, as one object each. */
const unpacked = (facts) => ({
  ...facts,
  layers: facts.layers.map((each) => ({ ...each.layer, ...each.layer.spec, ...each })),
  candidates: facts.candidates.map(({ candidate, places, ...rest }) => ({
    ...rest, start: candidate.start, end: candidate.end, kept: places,
    kernel: candidate.spec && candidate.spec.kernel, groups: candidate.spec && candidate.spec.groups,
    replaced: candidate.replaced,
  })),
  methods: facts.methods.map((method) => ({
    ...method,
    frontier: method.frontier.map(({ point, candidates }) => ({ ...point, candidates })),
    choices: method.choices.map(({ choice, candidates }) => ({
      ...choice.solution, budget: choice.budget, predicted_ms: choice.solution.latency_ms, candidates,
    })),
  })),
  curves: facts.curves.map(({ variant, ...rest }) => ({ ...variant, ...rest })),
});

const RUNS = JSON.parse(document.getElementById("facts").textContent).map(unpacked);
const state = { run: 0, a: 0, b: -1, stop: 0, label: "", layer: 0, perRow: 1 };

const run = () => RUNS[state.run];
const same = (one, other) => Math.abs(one - other) <= 1e-9 * Math.max(one, other);

/** Budgets the slider stops at: whole per cents of the original within reach, and those that were chosen for. */
function stopsOf(facts) {
  const whole = facts.original_ms, stops = [];
  for (const method of facts.methods) {
    for (const choice of method.choices) stops.push({ ms: choice.budget_ms, text: spaced(choice.budget) });
  }
  const smallest = Math.min(...facts.methods.filter((each) => each.frontier.length).map((each) => each.frontier[0].latency_ms));
  if (known(smallest)) {
    const first = Math.ceil((100 * smallest) / whole + 1e-9);
    for (let step = first; step <= 100; step++) stops.push({ ms: (whole * step) / 100, text: `${step} %` });
    stops.push({ ms: smallest, text: share(smallest / whole) });
  }
  stops.sort((one, other) => one.ms - other.ms);
  return stops.filter((stop, place) => !place || !same(stop.ms, stops[place - 1].ms));
}

const stopNow = () => stopsOf(run())[state.stop] || null;
const hasChoices = (method) => method.frontier.length > 0 || method.choices.length > 0;

/** The methods that are looked at: one, or two side by side. */
function shown() {
  const { methods } = run();
  return [state.a, state.b].filter((place) => place >= 0).map((place) => methods[place]).filter(hasChoices);
}

/** The choice that was made for this budget, else the frontier's best point within it, else null. */
function solutionAt(method, budget) {
  const choice = method.choices.find((each) => each.candidates.length && same(each.budget_ms, budget));
  if (choice) return { ...choice, latency_ms: choice.measured_ms, chosen: true };
  let best = null;
  for (const point of method.frontier) if (point.latency_ms <= budget * (1 + 1e-12)) best = point;
  return best && { ...best, predicted_ms: best.latency_ms, chosen: false };
}

/** What happens to each stretch of layers. */
function itemsOf(facts, solution) {
  return solution.candidates.map((place) => {
    const candidate = facts.candidates[place];
    const untouched = candidate.end - candidate.start === 1 && candidate.kept.length === 1;
    const kind = candidate.kernel === null ? "removed" : untouched ? "kept" : "merged";
    return { ...candidate, kind, ms: candidate.latency_ms, stride: facts.layers[candidate.start].stride };
  });
}

const untouchedItems = (facts) => facts.layers.map((layer, place) =>
  ({ ...layer, start: place, end: place + 1, kept: [place], kind: "kept", ms: layer.latency_ms }));

/** The rows of the diagram: the network as it came, then each method at the budget. */
function lanesOf(facts) {
  const stop = stopNow();
  const methods = stop ? shown() : [];
  return [{ name: "before", items: untouchedItems(facts) }, ...methods.map((method) => {
    const solution = solutionAt(method, stop.ms);
    const items = solution ? itemsOf(facts, solution) : [];
    return { name: `${method.method} at ${stop.text}`, method, solution, items };
  })];
}

/** The result of a method at a budget; of those, the one fine-tuned as chosen above the charts. */
function resultOf(facts, method, budget) {
  const near = facts.results.filter((result) => result.method === method && same(result.budget_ms, budget));
  return near.find((result) => result.label === state.label) || near[0] || null;
}

const bestOf = (facts) => (facts.headline === null ? null : facts.results[facts.headline]);

// -- colours and marks

/** All methods of a run, in an order that gives each its colour. */
function namesOf(facts) {
  const names = [...facts.methods, ...facts.results, ...facts.curves].map((each) => each.method);
  return [...new Set(names)].filter((name) => name !== "original");
}

const lookAt = (place) => ({ colour: `var(--s${place % 6})`, shape: SHAPES[place % 6] });

function lookOf(facts, name) {
  const place = namesOf(facts).indexOf(name);
  return place < 0 ? { colour: "var(--control)", shape: "cross" } : lookAt(place);
}

const methodCell = (facts, name) => ({ text: name, colour: lookOf(facts, name).colour });
