// The sections that do not follow the slider: the headline, results, curves, costs, reasons.

function bigFigure(name, before, after, note) {
  const from = before === null ? null : el("span", { class: "from" }, `${before} → `);
  const value = el("div", { class: "value" }, from, after);
  return el("div", { class: "figure" }, el("div", { class: "name" }, name), value, el("div", { class: "note-line" }, note));
}

function resultFigures(best) {
  const over = best.measured_ms / best.budget_ms - 1;
  const interval = intervalText(best.score);
  return [
    bigFigure("Latency, ms", ms(best.original_ms, ""), ms(best.measured_ms, ""),
      `budget ${ms(best.budget_ms)}: ${over <= 0 ? "kept" : `missed by ${share(over)}`}`),
    bigFigure("Speed-up", null, times(best.original_ms / best.measured_ms), "measured on what was exported"),
    bigFigure(capital(scoreTitle(best.score)), scoreText(best.original_score, ""), scoreText(best.score, ""),
      interval === "–" ? `on ${best.score.count} examples` : `95 % interval ${interval}`),
    bigFigure("Convolutions", `${best.convs_before}`, `${best.convs_after}`,
      `${best.method} at ${spaced(best.budget)}, ${best.label}`),
  ];
}

function originalFigures(facts) {
  const score = facts.original_score;
  return [
    bigFigure("Latency", null, ms(facts.original_ms), "of the original"),
    bigFigure("Convolutions", null, `${facts.layers.length}`, `${plural(facts.candidates.length, "candidate")} on the menu`),
    score ? bigFigure(capital(scoreTitle(score)), null, scoreText(score, ""), "of the original") : null,
  ];
}

function drawHeadline(facts) {
  const best = bestOf(facts), where = facts.latency_setting;
  const inputs = facts.inputs.map((shape) => shape.join("×")).join(", ");
  const setting = [plural(facts.layers.length, "convolution"), `input ${inputs}`];
  const threads = plural(where.threads || 1, "thread");
  if (where.runtime) setting.push(`${where.runtime} ${where.version || ""}, ${threads}, batch ${where.batch}`);
  show("title", facts.name);
  show("setting", setting.join(" · "));
  show("big", best ? resultFigures(best) : originalFigures(facts));
  const count = facts.results.filter((result) => result.method !== "original").length;
  show("headline-note", count > 1 ? `One of ${count} results: the tightest budget at which the score was mostly kept.` : "");
  const lines = el("ul", {}, facts.missing.map((line) => el("li", {}, line)));
  show("missing", facts.missing.length ? el("div", { class: "note" }, "Not everything is there yet:", lines) : null);
}

function accuracySeries(facts, rows) {
  const point = (result) => ({
    x: result.measured_ms,
    y: scaled(result.score, result.score.value),
    low: scaled(result.score, result.score.low),
    high: scaled(result.score, result.score.high),
    tip: `${result.method} at ${spaced(result.budget)}: ${scoreText(result.score)}, ${ms(result.measured_ms)}`,
  });
  return namesOf(facts).map((name) => {
    const points = rows.filter((result) => result.method === name).map(point).sort((one, other) => one.x - other.x);
    return { name, look: lookOf(facts, name), line: "straight", points };
  }).filter((series) => series.points.length);
}

function drawAccuracy(facts) {
  const none = facts.results.every((result) => result.method === "original");
  byId("accuracy-section").hidden = none;
  if (none) return;
  const rows = facts.results.filter((result) => result.label === state.label);
  const { score, original_score: before, original_ms: whole } = facts.results[0];
  const control = rows.find((result) => result.method === "original");
  const across = [{ y: scaled(before, before.value), name: "original" }];
  if (control) across.push({ y: scaled(score, control.score.value), name: "original, fine-tuned as long", dash: "1.5 3" });
  show("accuracy-title", `${capital(score.name)} against latency`);
  show("accuracy-lead", `Measured on the exported networks, on ${plural(before.count, "test example")}. Bars are 95 % intervals.`);
  const series = accuracySeries(facts, rows), label = `${score.name} against measured latency, by method`;
  byId("accuracy-chart").hidden = !series.length;
  if (series.length) {
    const titles = { label, x: "measured latency (ms)", y: scoreTitle(score) };
    chart(byId("accuracy-chart"), { ...titles, series, across, include: [whole], speeds: whole });
  }
  const cells = rows.map((result) => [
    methodCell(facts, result.method), spaced(result.budget), ms(result.measured_ms),
    times(result.original_ms / result.measured_ms), scoreText(result.score, ""), intervalText(result.score),
    `${result.convs_before} → ${result.convs_after}`,
  ]);
  const headings = ["method", "budget", "measured", "speed-up", scoreTitle(score), "95 % interval", "convs"];
  show("accuracy-table", folded("The figures", table("Results", headings, cells)));
}

const predictedText = (choice) => (
  known(choice.error_ms) ? `${ms(choice.predicted_ms)} ± ${ms(choice.error_ms)}` : ms(choice.predicted_ms));

function predictedSeries(facts, method) {
  const look = lookOf(facts, method.method), name = method.method;
  const rounds = method.choices.flatMap((choice) => choice.rounds.map((round) => (
    { x: round.predicted_ms, y: round.measured_ms, tip: `${name}, on the way to ${spaced(choice.budget)}` })));
  const ends = method.choices.map((choice) => {
    const both = `${predictedText(choice)} predicted, ${ms(choice.measured_ms)} measured`;
    return { x: choice.predicted_ms, y: choice.measured_ms, tip: `${name} at ${spaced(choice.budget)}: ${both}` };
  });
  return [{ name, look, silent: true, small: 2.6, points: rounds }, { name, look, points: ends }];
}

function drawPredicted(facts) {
  const methods = facts.methods.filter((method) => method.choices.length);
  byId("predicted-section").hidden = !methods.length;
  if (!methods.length) return;
  const titles = { label: "Measured against predicted latency", x: "predicted (ms)", y: "measured (ms)" };
  const series = methods.flatMap((method) => predictedSeries(facts, method));
  chart(byId("predicted-chart"), { ...titles, series, diagonal: true });
  const cells = methods.flatMap((method) => method.choices.map((choice) => {
    const result = resultOf(facts, method.method, choice.budget_ms);
    const over = (result || choice).measured_ms / choice.budget_ms - 1;
    const verdict = over <= 0 ? { text: "kept", class: "ok" } : { text: `missed by ${share(over)}`, class: "bad" };
    return [methodCell(facts, method.method), spaced(choice.budget), ms(choice.budget_ms), predictedText(choice),
      ms(choice.measured_ms), result ? ms(result.measured_ms) : "–", verdict, choice.rounds.length];
  }));
  const headings = ["method", "budget", "allows", "predicted", "when chosen", "as exported", "budget was", "rounds"];
  show("predicted-table", table("Predicted and measured", headings, cells));
}

function drawRecovery(facts) {
  const rows = facts.curves.filter((curve) => curve.label === state.label);
  byId("recovery-section").hidden = !rows.length;
  if (!rows.length) return;
  const unit = facts.original_score || { kind: "loss" }, count = {};
  const title = percent(unit) ? "held-out score (%)" : "held-out score";
  const series = rows.map((curve) => {
    const place = (count[curve.method] = (count[curve.method] ?? -1) + 1);
    const name = `${curve.method} ${spaced(curve.budget)}`;
    const points = curve.epochs.map((epoch, at) => ({ x: epoch, y: scaled(unit, curve.scores[at]), tip: name }));
    return { name, look: lookOf(facts, curve.method), line: "straight", last: true, dash: DASHES[place % 4], points };
  });
  chart(byId("recovery-chart"), { label: "Held-out score against epochs of fine-tuning", x: "epoch", y: title, series });
  const text = (value) => (known(value) ? scaled(unit, value).toFixed(percent(unit) ? 2 : 4) : "–");
  const cells = rows.map((curve) => {
    const last = curve.epochs.length - 1;
    return [methodCell(facts, curve.method), spaced(curve.budget), text(curve.scores[0]), text(curve.scores[last]),
      +curve.epochs[last].toFixed(2), seconds(curve.seconds)];
  });
  const headings = ["method", "budget", "before", "after", "epochs", "time"];
  show("recovery-table", folded("The figures", table("Recovery", headings, cells)));
}

function drawCosts(facts) {
  const rows = facts.costs.map(({ method, cost }) => [
    methodCell(facts, method), cost.entries, cost.workloads, seconds(cost.latency_seconds),
    cost.scored, seconds(cost.importance_seconds), cost.ruled_out, cost.failed,
  ]);
  const headings = ["method", "entries", "workloads timed", "in", "scored", "in", "spared by latency", "failed"];
  const none = el("p", { class: "muted" }, "No table is complete yet.");
  show("cost-table", rows.length ? table("What the tables cost", headings, rows) : none);
}

function drawReasons(facts) {
  const titles = {
    rule: "A rule of the plan forbids it",
    slow: "Latency shows that merging cannot pay, so it was not scored",
    failed: "Measuring it failed",
  };
  const layers = facts.layers.length, most = Math.max(1, ...facts.reasons.map((group) => group.count));
  const bar = (count) =>
    el("div", { class: "track" }, el("div", { class: "fill", style: { width: `${(100 * count) / most}%` } }));
  const wide = facts.candidates.filter((each) => each.end - each.start > 1);
  const merging = new Set(wide.map((each) => `${each.start}-${each.end}`));
  const told = `Of ${(layers * (layers - 1)) / 2} ranges of two or more layers, ${merging.size} can be treated as one.`;
  const parts = [el("p", { class: "lead" }, told)];
  if (!facts.reasons.some((group) => group.kind === "rule")) {
    const hint = el("code", {}, "layermerge plan MODEL");
    parts.push(el("p", {}, "This plan.json does not list the ranges that its rules forbid; ", hint, " does."));
  }
  for (const kind of Object.keys(titles)) {
    const groups = facts.reasons.filter((group) => group.kind === kind).map((group) => el("div", { class: "reason" },
      el("div", {}, el("span", { class: "count" }, `${group.count}`), group.reason),
      facts.reasons.length > 1 ? bar(group.count) : null,
      el("ul", {}, group.examples.map((example) => el("li", {}, example)))));
    if (groups.length) parts.push(el("h3", {}, titles[kind]), el("div", { class: "reasons" }, groups));
  }
  show("reasons", parts);
}

function drawHow(facts) {
  const list = (setting) => el("dl", {}, Object.entries(setting).flatMap(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, `${value}`)]));
  const scale = facts.scale !== null && facts.scale < 1
    ? ` Latencies of single layers summed to more than the whole network's and were scaled by ${facts.scale.toFixed(3)}.` : "";
  const fixed = facts.fixed_ms ? ` No candidate covers ${ms(facts.fixed_ms)} of the whole.` : "";
  const tables = [["Latency table", facts.latency_setting], ["Importance table", facts.importance_setting]];
  show("how", el("p", {}, "Run directory ", el("code", {}, facts.directory), `, plan of ${facts.method}.${fixed}${scale}`),
    tables.filter(([, setting]) => Object.keys(setting).length).map(([title, setting]) => folded(title, list(setting))));
}

function runSeries(facts, place) {
  const points = facts.results.filter((result) => result.method !== "original" && percent(result.score)).map((result) => ({
    x: (100 * result.measured_ms) / result.original_ms,
    y: 100 * (result.score.value - result.original_score.value),
    tip: `${facts.name}: ${result.method} at ${spaced(result.budget)}, ${result.label}`,
  }));
  return { name: facts.name, look: lookAt(place), points };
}

function drawRuns() {
  byId("runs-section").hidden = RUNS.length < 2;
  if (RUNS.length < 2) return;
  const series = RUNS.map(runSeries).filter((each) => each.points.length);
  const titles = { label: "Change in score against share of latency, by run", y: "change in score (points)" };
  byId("runs-chart").hidden = !series.length;
  if (series.length) {
    const across = [{ y: 0, name: "as the original" }];
    chart(byId("runs-chart"), { ...titles, x: "latency (% of the original)", series, across, include: [100] });
  }
  const rows = RUNS.map((facts, place) => {
    const best = bestOf(facts), name = { text: facts.name, colour: lookAt(place).colour };
    const runtime = facts.latency_setting.runtime || "–";
    const before = [facts.layers.length, runtime, ms(facts.original_ms), scoreText(facts.original_score)];
    if (!best) return [name, ...before, "–", "–", "–", "–"];
    const speedUp = times(best.original_ms / best.measured_ms);
    return [name, ...before, `${best.method} ${spaced(best.budget)}`, ms(best.measured_ms), speedUp, scoreText(best.score)];
  });
  const headings = ["run", "convs", "runtime", "original", "score", "result", "latency", "speed-up", "score"];
  show("runs-table", table("Runs", headings, rows));
}
