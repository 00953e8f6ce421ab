"""How long the whole frontier takes, how many points and labels it has, and how much memory it needs.

Run: python benchmarks/frontier.py [--plot growth.png]. Every instance is solved in a process of its own; times are medians.
Memory is the peak resident size (Linux counts it in kilobytes) above that of the same process before solving.

Instances are made up but shaped like real tables: stages that no range crosses, every range of a stage with every kernel it can
merge into, latency ~ feature map x channels x kernel area with 10 % noise, D below zero and worse the more is removed, score
exp(D), and exp(D) - 1 for an identity.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from layermerge.solving.labels import Option, pareto

# name, layers, options, repeats, ticks that the slowest single layers would fill (None: exact), limit in seconds
CASES: tuple[tuple[str, int, int, int, int | None, float], ...] = (
    ("paper, 150 entries", 33, 150, 15, None, 0.1),
    ("paper, 391 entries", 52, 391, 15, None, 0.1),
    ("ours, 819 entries", 52, 819, 15, None, 0.1),
    ("300 layers, exact", 300, 3_000, 3, None, 10.0),
    ("1,000 layers, tick", 1_000, 10_000, 3, 100_000, 30.0),
)
GROWTH = (50, 100, 150, 200, 300, 400)


def made_up(layers: int, count: int, seed: int = 0) -> list[Option]:
    """`count` options over `layers` layers: short ranges first, so that every layer can stay as it is."""
    draw = random.Random(seed)
    stages = max(2, layers // 10)
    stage = [place * stages // layers for place in range(layers)]
    area = [draw.uniform(0.5, 1.5) * 0.9 ** (number % 8) for number in range(stages)]
    cost = [area[stage[place]] * draw.choice([0.3, 1.0, 1.0, 2.0]) for place in range(layers)]
    found: list[Option] = []
    for length, start, kernel in _shapes(layers):
        end = start + length
        if end > layers or stage[start] != stage[end - 1]:
            continue
        kept = (kernel - 1) // 2
        harm = 0.03 * (length - kept) + 0.01 * (length - 1)
        difference = -harm * draw.uniform(0.3, 2.0) if length > 1 or not kept else 0.0
        latency = cost[start] * (kernel / 3) ** 2 * draw.uniform(0.9, 1.1) if kept else 0.0
        score = math.exp(difference) - (not kept)
        found.append(Option(start, end, latency, score, f"{start}-{end}:{kernel}"))
        if len(found) == count:
            return found
    raise ValueError(f"{layers} layers have only {len(found)} options of this kind")


def _shapes(layers: int) -> Iterator[tuple[int, int, int]]:
    """Length, start and kernel, where 1 stands for an identity; starts in an order that fills all stages alike."""
    for length in range(1, 11):
        for kernel in range(2 * length + 1, 0, -2):
            for start in sorted(range(layers), key=lambda place: (place * 7919) % layers):
                yield length, start, kernel


def solve_once(layers: int, count: int, ticks: int | None) -> dict[str, float]:
    """One solve in this process: seconds, megabytes above the start, points, labels, tick."""
    options = made_up(layers, count)
    whole = sum(option.latency_ms for option in options if option.end - option.start == 1)
    tick = whole / ticks if ticks else None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    found = pareto(options, layers, tick_ms=tick)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    longest = max(len(found.chain(index)) for index in range(0, len(found), max(1, len(found) // 200)))
    return {
        "seconds": seconds,
        "megabytes": (peak - before) / 1024,
        "points": len(found),
        "labels": found.labels,
        "tick": tick or 0.0,
        "whole": whole,
        "longest": longest,
    }


def measured(layers: int, count: int, ticks: int | None, repeats: int) -> dict[str, float]:
    """Medians over fresh processes."""
    runs: list[dict[str, float]] = []
    for _ in range(repeats):
        task = json.dumps([layers, count, ticks])
        done = subprocess.run([sys.executable, __file__, "--one", task], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def print_cases() -> None:
    print(
        f"{'instance':<20} {'layers':>6} {'options':>7} {'points':>8} {'labels':>11} {'seconds':>8} {'limit':>6} {'MB':>6}"
    )
    for name, layers, count, repeats, ticks, limit in CASES:
        facts = measured(layers, count, ticks, repeats)
        print(
            f"{name:<20} {layers:>6} {count:>7,} {facts['points']:>8,.0f} {facts['labels']:>11,.0f} "
            f"{facts['seconds']:>8.3f} {limit:>6} {facts['megabytes']:>6.0f}"
        )
        if ticks:
            bound = layers * facts["tick"]
            print(
                f"  tick {facts['tick']:.3g} ms: scores are at least the best at latencies smaller by {layers:,} ticks = "
                f"{bound:.3g} ms, {bound / facts['whole']:.2%} of all single layers; latencies are true sums"
            )


def print_growth() -> list[tuple[int, float]]:
    print(
        f"\n{'layers':>6} {'options':>7} {'points':>8} {'labels':>11} {'seconds':>8} {'MB':>6}   exact, ten options each"
    )
    seconds = []
    for layers in GROWTH:
        facts = measured(layers, 10 * layers, None, 3)
        seconds.append((layers, facts["seconds"]))
        print(
            f"{layers:>6} {10 * layers:>7,} {facts['points']:>8,.0f} {facts['labels']:>11,.0f} {facts['seconds']:>8.3f} "
            f"{facts['megabytes']:>6.0f}   {'#' * max(1, round(facts['seconds'] * 4))}",
            flush=True,
        )
    (small, fast), (large, slow) = seconds[1], seconds[-1]
    print(
        f"seconds grow as layers to the {math.log(slow / fast) / math.log(large / small):.1f} between {small} and {large}"
    )
    return seconds


def plot(seconds: Sequence[tuple[int, float]], path: str) -> None:
    try:
        from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    figure, axes = pyplot.subplots()
    axes.loglog(*zip(*seconds, strict=True), marker="o")
    axes.set(xlabel="layers (ten options each)", ylabel="seconds for the whole exact frontier")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plot", metavar="PNG", help="also draw the growth, if matplotlib is installed")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        task: list[Any] = json.loads(flags.one)
        print(json.dumps(solve_once(*task)))
        return
    print_cases()
    seconds = print_growth()
    if flags.plot:
        plot(seconds, flags.plot)


if __name__ == "__main__":
    main()
