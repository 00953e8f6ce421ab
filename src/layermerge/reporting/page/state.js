// The runs' facts, and which run, method and budget are looked at.

const RUNS = JSON.parse(byId("facts").textContent);
const state = { run: 0, method: RUNS.map(() => 0), stop: RUNS.map(() => 0), layer: RUNS.map(() => null) };

const run = () => RUNS[state.run];
const stops = () => run().methods[state.method[state.run]]?.stops || [];
const stopNow = () => stops()[state.stop[state.run]] || null;

/** A part of the run that is shown: those of the first have plain ids. */
const part = (name, place = state.run) => byId(place ? `${name}-${place}` : name);
const within = (name, piece) => part(name)?.querySelector(`[data-part="${piece}"]`);

/** What each layer becomes: the candidate that treats it. */
function fatesOf(facts, stop) {
  const fates = new Array(facts.layers.length);
  for (const place of stop.candidates) {
    const { candidate } = facts.candidates[place];
    for (let layer = candidate.start; layer < candidate.end; layer++) fates[layer] = facts.candidates[place];
  }
  return fates;
}

const keepsLayer = ({ candidate, places }) => candidate.end - candidate.start === 1 && places.length === 1;

function kindOf(fate, layer) {
  if (!fate || keepsLayer(fate)) return "kept";
  return fate.places.includes(layer) ? "merged" : "removed";
}
