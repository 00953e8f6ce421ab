"""Small networks to solve: random options, and every chain of them by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from layermerge.conv import ConvSpec
from layermerge.planning.candidate import Candidate
from layermerge.solving.labels import Option

# Few values make ties; 0.1 + 0.2 and the like make sums that depend on their order.
LATENCIES = st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0]), st.floats(0, 10))
SCORES = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1.0, -0.1]), st.floats(-2, 2))


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[Option], int]:
    """One to five layers; a random chain is always there, so that an instance has a solution."""
    layers = draw(st.integers(1, 5))
    spans = [(a, b) for a in range(layers) for b in range(a + 1, layers + 1)]
    ranges = draw(st.lists(st.sampled_from(spans), max_size=10))
    inner = sorted(draw(st.sets(st.integers(1, layers - 1)))) if layers > 1 else []
    ranges += zip([0, *inner], [*inner, layers], strict=True)
    options = [
        Option(start, end, draw(LATENCIES), draw(SCORES), f"{start}-{end}:{number}")
        for number, (start, end) in enumerate(ranges)
    ]
    return draw(st.permutations(options)), layers


def chains(options: Sequence[Option], layers: int, place: int = 0) -> Iterator[tuple[Option, ...]]:
    if place == layers:
        yield ()
    for option in options:
        if option.start == place:
            for rest in chains(options, layers, option.end):
                yield (option, *rest)


def totals(chain: Sequence[Option]) -> tuple[float, float]:
    """Latency and score, added from left to right."""
    latency = score = 0.0
    for option in chain:
        latency += option.latency_ms
        score += option.score
    return latency, score


def best_points(options: Sequence[Option], layers: int) -> list[tuple[float, float]]:
    """The oracle: all chains, and of those the points that none beats."""
    points = sorted({totals(chain) for chain in chains(options, layers)}, key=lambda point: (point[0], -point[1]))
    kept: list[tuple[float, float]] = []
    for point in points:
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept


def candidate(start: int, end: int, kernel: int | None = 3, kept: int | None = None) -> Candidate:
    """Layers l0, l1, ... of which the first `kept` (all unless told) stay; kernel None: an identity."""
    names = tuple(f"l{index}" for index in range(start, end))
    if kernel is None:
        return Candidate(start, end, names, (), None)
    spec = ConvSpec(8, 8, (kernel, kernel), padding=(kernel // 2,) * 4)
    return Candidate(start, end, names, names[:kept], spec)
