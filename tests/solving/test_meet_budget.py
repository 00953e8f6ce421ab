"""The closed loop: on machines that differ from the table, and on real runtimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import layermerge as lm
import zoo
from agreement import worst
from layermerge.conv import ConvSpec
from layermerge.errors import BudgetError, InfeasibleBudget
from layermerge.planning.candidate import Candidate
from layermerge.runtimes.base import Pass, RuntimeSettings
from layermerge.runtimes.clock import ClockSettings
from layermerge.runtimes.torch_eager import TorchEager
from layermerge.solving.budget import budget_ms
from layermerge.solving.frontier import Frontier, Round, Solution, build_frontier
from layermerge.solving.labels import Option
from layermerge.solving.learning import Measured
from layermerge.solving.meet_budget import close_the_loop
from layermerge.tables.latency import Prediction
from layermerge.tracing.inputs import Inputs

QUICK = ClockSettings(warm_up=1, least_rounds=2, most_rounds=2, seconds=0)
DENSE = [step / 10 for step in range(1, 101)]


def frontier(
    latencies: list[float], original_ms: float | None = None, scores: Sequence[float] | None = None
) -> Frontier:
    """One layer, a choice for each latency, the slower the better; the slowest is the untouched network."""
    ordered = sorted(latencies)
    menu = [
        Candidate(0, 1, ("l",), ("l",) if ms == ordered[-1] else ("other",), ConvSpec(8, 8, (place + 1, place + 1)))
        for place, ms in enumerate(ordered)
    ]
    given = list(map(float, range(len(ordered)))) if scores is None else scores
    options = [Option(0, 1, ms, given[place], menu[place].key) for place, ms in enumerate(ordered)]
    return build_frontier(options, {entry.key: entry for entry in menu}, 1, original_ms=original_ms or ordered[-1])


class Machine:
    """What passes really take, by how much the slowest window exceeds that, and which choices were measured."""

    def __init__(self, truth: Callable[[float], float], scatter: float = 0.0) -> None:
        self.truth, self.scatter = truth, scatter
        self.measured: list[tuple[str, ...]] = []

    def __call__(self, solution: Solution) -> Measured:
        self.measured.append(tuple(candidate.key for candidate in solution.candidates))
        taken = self.truth(solution.latency_ms)
        return Measured(taken, self.scatter * taken)


TRUTHS: dict[str, Callable[[float], float]] = {
    "as predicted": lambda ms: ms,
    "slower, with an overhead": lambda ms: 1.2 * ms + 0.1,
    "much slower": lambda ms: 2.5 * ms,
    "faster": lambda ms: 0.6 * ms,
    "faster, with an overhead": lambda ms: 0.6 * ms + 1.0,
    "steeper": lambda ms: 1.5 * ms - 0.1,
    "scattered": lambda ms: ms * (1.1 + 0.05 * (int(ms * 10) % 3)),
}


@pytest.mark.parametrize("budget", ["100%", "80%", "60%", "40%", "15%", "3.33ms", "1.7x"])
@pytest.mark.parametrize("name", TRUTHS)
def test_what_is_returned_keeps_the_budget_and_uses_it(name: str, budget: str) -> None:
    machine, allowed = Machine(TRUTHS[name]), budget_ms(budget, 10.0)
    met = close_the_loop(frontier(DENSE), budget, machine)
    assert met.measured_ms is not None
    assert met.measured_ms <= allowed
    assert met.measured_ms == machine.truth(met.latency_ms)
    assert met.budget_ms == allowed
    # What is left over is less than three per cent, or what could be had with two steps more of this machine.
    best = max(machine.truth(ms) for ms in DENSE if machine.truth(ms) <= allowed)
    assert met.measured_ms >= min(0.97 * allowed, best) - 2 * (machine.truth(10.0) - machine.truth(9.9)) - 0.3
    assert met.importance == DENSE.index(round(met.latency_ms, 1))


@pytest.mark.parametrize("name", TRUTHS)
def test_rounds_are_recorded_and_nothing_is_measured_twice(name: str) -> None:
    machine = Machine(TRUTHS[name])
    met = close_the_loop(frontier(DENSE), "50%", machine)
    assert len(met.rounds) == len(machine.measured) == len(set(machine.measured))
    assert met.rounds[0].predicted_ms == pytest.approx(5.0)
    assert all(turn.measured_ms == machine.truth(turn.predicted_ms) for turn in met.rounds)
    assert Round(met.latency_ms, met.measured_ms or 0.0) in met.rounds


def test_one_round_where_the_prediction_is_right() -> None:
    met = close_the_loop(frontier(DENSE), "60%", Machine(lambda ms: ms))
    assert met.rounds == (Round(met.latency_ms, met.latency_ms),)
    assert met.latency_ms == pytest.approx(6.0)


def test_room_that_a_pessimistic_prediction_left_is_used() -> None:
    met = close_the_loop(frontier(DENSE), "30%", Machine(lambda ms: 0.5 * ms))
    assert met.rounds[0].measured_ms == pytest.approx(1.5)
    assert met.latency_ms > 5.5
    assert met.measured_ms is not None
    assert 2.9 <= met.measured_ms <= 3.0


@pytest.mark.parametrize(("better", "rounds"), [(90.0, 2), (15.0, 2), (14.0, 1)])
def test_little_room_is_used_where_it_holds_enough(better: float, rounds: int) -> None:
    """The first choice leaves 2 % of the budget, and 90 of 100 to lose: what wins back a twentieth of that is tried."""
    latencies, scores = [5.95, 6.05, 10.0], [10.0, better, 100.0]
    met = close_the_loop(frontier(latencies, scores=scores), "60%", Machine(lambda ms: 0.985 * ms))
    assert [turn.predicted_ms for turn in met.rounds] == [5.95, 6.05][:rounds]
    assert met.latency_ms == [5.95, 6.05][rounds - 1]


class Doubtful:
    """A frontier that knows that its predictions may be off by so much."""

    def __init__(self, known: Frontier, error_ms: float) -> None:
        self.known, self.error_ms = known, error_ms
        self.original_ms, self.smallest_ms = known.original_ms, known.smallest_ms
        self.highest_importance, self.within = known.highest_importance, known.within

    def predict(self, solution: Solution) -> Prediction:
        return Prediction(solution.latency_ms, self.error_ms)


@pytest.mark.parametrize(
    ("error_ms", "taken", "tried", "chosen"),
    [
        (0.4, 5.95, [5.9, 6.1], 6.1),  # it may fit, and does
        (0.4, 6.3, [5.9, 6.1], 5.9),  # it may fit, and does not
        (0.1, 5.95, [5.9], 5.9),  # it should not fit
    ],
)
def test_what_may_fit_is_tried_where_it_would_win_much(
    error_ms: float, taken: float, tried: list[float], chosen: float
) -> None:
    truth = {5.9: 5.9, 6.1: taken, 10.0: 10.0}
    choices = Doubtful(frontier(list(truth), scores=[10.0, 60.0, 100.0]), error_ms)
    met = close_the_loop(choices, "60%", Machine(lambda ms: truth[ms]))
    assert [turn.predicted_ms for turn in met.rounds] == tried
    assert met.latency_ms == chosen


def test_much_room_is_used_for_whatever_it_holds() -> None:
    """0.1 of 3 to lose is less than a twentieth, but 40 % of the budget are left."""
    met = close_the_loop(frontier([3.0, 9.0, 10.0], scores=[97.0, 97.1, 100.0]), "60%", Machine(lambda ms: 0.6 * ms))
    assert [turn.predicted_ms for turn in met.rounds] == [3.0, 9.0]
    assert met.latency_ms == 9.0


def test_the_best_of_what_was_measured_is_returned_where_using_the_room_overshoots() -> None:
    truth = {2.0: 1.0, 4.0: 3.5, 10.0: 10.0}
    met = close_the_loop(frontier(list(truth)), "25%", Machine(lambda ms: truth[ms]))
    assert [turn.predicted_ms for turn in met.rounds] == [2.0, 4.0]
    assert (met.latency_ms, met.measured_ms) == (2.0, 1.0)


def test_every_window_keeps_the_budget_where_there_is_such_a_choice() -> None:
    """Copies differ by a per cent, say: the median that just keeps it is not enough, and the next choice asks for less."""
    met = close_the_loop(frontier(DENSE), "60%", Machine(lambda ms: ms, scatter=0.01))
    assert [turn.predicted_ms for turn in met.rounds] == pytest.approx([6.0, 5.9])
    assert met.measured_ms == pytest.approx(5.9)
    only = close_the_loop(frontier([6.0, 10.0]), "60%", Machine(lambda ms: ms, scatter=0.01))
    assert only.measured_ms == 6.0, "where there is none, the median decides"


def test_all_of_the_budget_asks_for_the_untouched_network_first() -> None:
    """Shares must not be rounded on the way: a third is no decimal number."""
    met = close_the_loop(frontier([0.1, 1 / 3]), "100%", Machine(lambda ms: ms))
    assert met.latency_ms == 1 / 3
    assert met.candidates[0].untouched


# -- budgets that cannot be kept


def test_a_budget_below_every_prediction_is_infeasible_once_the_fastest_choice_is_measured() -> None:
    machine = Machine(lambda ms: ms)
    with pytest.raises(
        InfeasibleBudget, match=r"no choice of candidates runs in 0.5000 ms; the smallest reachable"
    ) as error:
        close_the_loop(frontier([1.0, 10.0]), "5%", machine)
    assert len(machine.measured) == 1
    assert error.value.smallest_ms == 1.0


def test_a_budget_below_every_prediction_is_kept_where_the_network_is_faster_than_predicted() -> None:
    """Removing more saves more than its rows say: predictions end at 8.0, measurements go down to 2.0."""
    machine = Machine(lambda ms: 10.0 - 4.0 * (10.0 - ms))
    met = close_the_loop(frontier([step / 10 for step in range(80, 101)]), "50%", machine)
    assert met.measured_ms is not None
    assert 4.6 <= met.measured_ms <= 5.0


def test_a_budget_that_no_measured_choice_keeps_is_infeasible_and_says_what_was_reached() -> None:
    machine = Machine(lambda ms: ms + 3.0)
    with pytest.raises(
        InfeasibleBudget, match=r"the smallest reachable latency is 4.0000 ms, 40.00% of the original"
    ) as error:
        close_the_loop(frontier([1.0, 3.0, 10.0]), "35%", machine)
    assert error.value.smallest_ms == pytest.approx(4.0)
    assert error.value.budget_ms == 3.5


@pytest.mark.parametrize("overhead", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("slope", [0.5, 1.0, 1.5])
def test_a_budget_that_some_choice_keeps_is_kept(slope: float, overhead: float) -> None:
    """However much the machine adds: 60 % of the original is within reach in every one of these cases."""
    machine = Machine(lambda ms: slope * ms + overhead)
    assert machine.truth(0.1) < 6.0
    met = close_the_loop(frontier(DENSE), "60%", machine)
    assert met.measured_ms is not None
    assert met.measured_ms <= 6.0


def test_the_smallest_choice_is_measured_before_giving_up() -> None:
    """The correction asks for less than the smallest prediction, yet the smallest choice keeps the budget."""
    truth = {8.2: 11.4, 10.0: 15.0, 12.0: 20.0}
    met = close_the_loop(frontier(list(truth)), "12ms", Machine(lambda ms: truth[ms]))
    assert met.latency_ms == 8.2


@pytest.mark.parametrize("budget", ["60", "abc%", "-3ms", "0%"])
def test_a_budget_that_cannot_be_read_is_refused_before_measuring(budget: str) -> None:
    machine = Machine(lambda ms: ms)
    with pytest.raises(BudgetError, match="budget"):
        close_the_loop(frontier(DENSE), budget, machine)
    assert machine.measured == []


# -- real runtimes


@pytest.mark.parametrize(("runtime", "budget"), [("torch", "1000%"), ("onnxruntime", "100%")])
def test_a_real_network_on_a_real_runtime(runtime: str, budget: str, tmp_path: Path) -> None:
    traced = zoo.traced("plain")
    plan = lm.plan(traced)
    table = lm.measure_latency(plan, trace=traced, runtime=runtime, path=tmp_path / "latency.jsonl", clock=QUICK)
    scores = {entry.key: -0.1 * (len(entry.layers) - 1) - 0.01 for entry in plan.candidates if not entry.untouched}
    try:
        met = lm.meet_budget(traced, plan, table, scores, budget=budget, runtime=runtime, clock=QUICK)
    except InfeasibleBudget:
        assert budget == "100%"  # two rounds on a busy machine say little
        return
    assert met.budget_ms is not None
    assert met.measured_ms is not None
    assert 0 < met.measured_ms <= met.budget_ms == budget_ms(budget, table.original_ms)
    assert 1 <= len(met.rounds) <= 8
    assert [entry.start for entry in met.candidates] == [0, *(entry.end for entry in met.candidates[:-1])]
    net = lm.rewrite(traced, met.candidates).eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert worst(net(x), lm.merge(net)(x)) <= 1e-5
    if budget == "1000%":
        assert all(entry.untouched for entry in met.candidates)


def test_the_merged_network_is_what_is_measured(tmp_path: Path) -> None:
    """Time is made of convs: what is measured is the original's three, and the merged network's own."""
    traced = zoo.traced("plain")
    plan = lm.plan(traced, lm.Rules(rule_out_slow=False))
    table = lm.measure_latency(plan, trace=traced, path=tmp_path / "latency.jsonl", clock=QUICK)
    built: list[int] = []

    class Counting(TorchEager):
        def prepare(self, module: torch.nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
            del inputs
            convs = sum(isinstance(part, torch.nn.Conv2d) for part in module.modules())
            if not small:  # the others are workloads, timed before anything is built
                built.append(convs)
            return lambda: float(convs)

        def record(self, module: torch.nn.Module, inputs: Inputs, *, small: bool = False) -> None:
            """Tells nothing."""

    # Merging everything scores best, so it is the first choice at any budget that its prediction keeps.
    scores = {
        entry.key: 5.0 if entry.kept == entry.layers and len(entry.layers) == 3 else -1.0 for entry in plan.candidates
    }
    met = lm.meet_budget(
        traced, plan, table, scores, budget="100000%", runtime=Counting(RuntimeSettings()), clock=QUICK
    )
    assert [entry.key for entry in met.candidates] == ["0-3:7x7g1"]
    assert list(dict.fromkeys(built))[:2] == [3, 1], "copies of the original, then copies of the merged network"
    assert met.measured_ms == pytest.approx(table.original_ms / 3)


def test_a_table_of_another_runtime_is_refused(tmp_path: Path) -> None:
    traced = zoo.traced("plain")
    menu = lm.plan(traced)
    table = lm.measure_latency(menu, trace=traced, runtime="torch", path=tmp_path / "t.jsonl", clock=QUICK)
    with pytest.raises(lm.LayerMergeError, match="measured on torch, not on onnxruntime"):
        lm.meet_budget(traced, menu, table, {}, budget="60%", runtime="onnxruntime")
