"""Terms between neighbours against brute force over all chains."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from layermerge.solving.labels import Option, pareto
from layermerge.solving.pairs import PairedMenu, Pairs
from solving.instances import chains, instances


@st.composite
def paired(draw: st.DrawFn) -> tuple[list[Option], int, dict[tuple[str, str], float]]:
    """Terms between some neighbours, and between some that never meet."""
    options, layers = draw(instances())
    any_two = st.tuples(st.sampled_from(options), st.sampled_from(options))
    neighbours = [(one.key, two.key) for one in options for two in options if one.end == two.start]
    far = [(one.key, two.key) for one, two in draw(st.lists(any_two, max_size=3)) if one.end != two.start]
    near = draw(st.lists(st.sampled_from(neighbours), max_size=8)) if neighbours else []
    terms = st.integers(-8, 8).map(lambda tenths: tenths / 8)  # exact in floats, whatever the order of the sum
    return options, layers, {pair: draw(terms) for pair in [*near, *far]}


def brute_force(options: list[Option], layers: int, pairs: Pairs) -> dict[float, float]:
    """The best score at each latency that no faster chain reaches, by trying every chain."""
    found: dict[float, float] = {}
    for chain in chains(options, layers):
        latency = score = 0.0
        before = None
        for option in chain:
            latency += option.latency_ms
            score += option.score + (0.0 if before is None else pairs.get((before, option.key), 0.0))
            before = option.key
        found[latency] = max(score, found.get(latency, -float("inf")))
    best: dict[float, float] = {}
    for latency in sorted(found):
        if not best or found[latency] > max(best.values()):
            best[latency] = found[latency]
    return best


@settings(max_examples=400)
@given(paired())
def test_terms_between_neighbours_equal_brute_force(
    instance: tuple[list[Option], int, dict[tuple[str, str], float]],
) -> None:
    options, layers, pairs = instance
    menu = PairedMenu(options, layers, pairs)
    found = pareto(menu.expanded, menu.last_place)
    assert dict(zip(found.latency_ms.tolist(), found.score.tolist(), strict=True)) == brute_force(
        options, layers, pairs
    )
    by_key = {option.key: option for option in options}
    for index in range(len(found)):
        keys = [menu.own_keys[key] for key in found.chain(index)]
        assert menu.chain(keys) == list(found.chain(index))
        assert [by_key[two].start for two in keys[1:]] == [by_key[one].end for one in keys[:-1]]


def test_a_pair_changes_the_choice_only_where_both_stand_side_by_side() -> None:
    options = [
        Option(0, 1, 1.0, 0.0, "a"),
        Option(1, 2, 1.0, 0.0, "b"),
        Option(0, 1, 1.0, -0.5, "c"),
        Option(2, 3, 1.0, 0.0, "d"),
    ]
    for pairs, best in (
        ({}, ["a", "b", "d"]),
        ({("a", "b"): -1.0}, ["c", "b", "d"]),
        ({("a", "d"): -1.0}, ["a", "b", "d"]),  # never side by side
    ):
        menu = PairedMenu(options, 3, pairs)
        found = pareto(menu.expanded, menu.last_place)
        assert [menu.own_keys[key] for key in found.chain(0)] == best, pairs
