"""The clock, on scripted times: what it reports, in which order it runs passes, and when it stops."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from layermerge.runtimes.clock import ClockSettings, Sample, cache_pressure, involuntary_switches, time_side_by_side

MANY = ClockSettings(warm_up=0, least_rounds=2, most_rounds=10, seconds=1e9, spread=-1.0)
"""Ten rounds whatever happens."""


class Machine:
    """A clock that moves only when a pass runs; each pass has a script of milliseconds, the last of which repeats."""

    def __init__(self, **scripts: Sequence[float]) -> None:
        self.seconds = 100.0
        self.calls: list[str] = []
        self.scripts = scripts
        self.interrupted = 0
        self.runs = {name: self._run(name) for name in scripts}

    def _run(self, name: str) -> Callable[[], None]:
        def run() -> None:
            script = self.scripts[name]
            self.seconds += script[min(self.calls.count(name), len(script) - 1)] / 1e3
            self.calls.append(name)

        return run

    def time(self, settings: ClockSettings) -> dict[str, Sample]:
        return time_side_by_side(self.runs, settings, now=lambda: self.seconds, interruptions=lambda: self.interrupted)


def test_the_value_is_a_low_quantile_in_milliseconds() -> None:
    # Ten sorted values at 20 %: place 1.8 between the second and the third.
    sample = Machine(a=[9, 3, 4, 5, 6, 7, 8, 10, 11, 12]).time(MANY)["a"]
    assert sample.value_ms == pytest.approx(4 + 0.8 * (5 - 4))
    assert sample.rounds == 10
    least = Machine(a=[9, 3, 4, 5, 6, 7, 8, 10, 11, 12]).time(replace(MANY, quantile=0.0))["a"]
    assert least.value_ms == pytest.approx(3)


def test_noise_that_only_adds_does_not_move_the_value() -> None:
    sample = Machine(a=[5, 50, 5, 500, 5, 5, 50, 5, 5, 70]).time(MANY)["a"]
    assert sample.value_ms == pytest.approx(5)


class Crowded(Machine):
    """Another process takes three times as long whenever a pass of `b` comes, but for every seventh."""

    def _run(self, name: str) -> Callable[[], None]:
        run = super()._run(name)

        def disturbed() -> None:
            run()
            if name == "b" and self.calls.count("b") % 7:
                self.seconds += 3 * self.scripts["b"][0] / 1e3
                self.interrupted += 1

        return disturbed


def test_passes_that_were_interrupted_are_left_out() -> None:
    settings = replace(MANY, most_rounds=70)
    samples = Crowded(a=[2], b=[5]).time(replace(settings, least_rounds=10))
    assert samples["a"].value_ms == pytest.approx(2)
    assert samples["b"].value_ms == pytest.approx(5)
    assert samples["b"].rounds == 10


def test_interrupted_passes_count_where_there_are_too_few_others() -> None:
    samples = Crowded(a=[2], b=[5]).time(replace(MANY, most_rounds=70, least_rounds=11))
    assert samples["b"].value_ms == pytest.approx(20)
    assert samples["b"].rounds == 70


def test_the_system_counts_interruptions() -> None:
    """Two busy processes on one processor take turns, and neither of its own accord."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("processes cannot be tied to a processor here")
    allowed = os.sched_getaffinity(0)
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for process in (0, rival.pid):
            os.sched_setaffinity(process, {min(allowed)})
        before, until = involuntary_switches(), time.monotonic() + 30
        while involuntary_switches() == before and time.monotonic() < until:
            pass
        assert involuntary_switches() > before
    finally:
        os.sched_setaffinity(0, allowed)
        rival.kill()
        rival.wait()


def test_passes_take_turns_after_each_has_warmed_up() -> None:
    machine = Machine(a=[1], b=[2], c=[3])
    samples = machine.time(ClockSettings(warm_up=2, least_rounds=3, most_rounds=3, seconds=0))
    assert "".join(machine.calls) == "aabbcc" + "abc" * 3
    assert {name: sample.rounds for name, sample in samples.items()} == {"a": 3, "b": 3, "c": 3}


def test_warm_up_is_not_timed() -> None:
    sample = Machine(a=[1000, 1000, 1000, 7]).time(replace(MANY, warm_up=3))["a"]
    assert sample.value_ms == pytest.approx(7)
    assert sample.spread == pytest.approx(0)


def test_it_stops_as_soon_as_all_are_steady() -> None:
    settings = ClockSettings(warm_up=0, least_rounds=4, most_rounds=50, seconds=1e9, spread=0.01)
    steady = Machine(a=[5], b=[6]).time(settings)
    assert {sample.rounds for sample in steady.values()} == {4}
    # Up to round 9, every second value of b is twice the others; then it settles, and the low quantile with it.
    waiting = Machine(a=[5], b=[6, 12] * 5 + [6]).time(settings)
    assert 4 < waiting["b"].rounds < 50
    assert waiting["a"].rounds == waiting["b"].rounds
    assert waiting["b"].spread <= 0.01


def test_it_stops_at_the_most_rounds() -> None:
    machine = Machine(a=[5, 10] * 50)
    samples = machine.time(ClockSettings(warm_up=0, least_rounds=2, most_rounds=7, seconds=1e9, spread=0.01))
    assert samples["a"].rounds == 7
    assert samples["a"].spread == pytest.approx(0.5)


def test_it_stops_when_the_time_is_up_but_not_before_the_least_rounds() -> None:
    settings = ClockSettings(warm_up=0, least_rounds=2, most_rounds=50, seconds=0.1, spread=-1.0)
    # Rounds of 30 ms: 90 ms after three, more than 100 ms after four.
    assert Machine(a=[10], b=[20]).time(settings)["a"].rounds == 4
    assert Machine(a=[1000]).time(settings)["a"].rounds == 2


def test_the_spread_is_how_far_two_halves_of_the_rounds_disagree() -> None:
    samples = Machine(a=[8, 10] * 5, b=[3]).time(MANY)
    assert samples["a"].spread == pytest.approx(0.2)
    assert samples["b"].spread == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("slow_from", [1, 3, 5, 8])
def test_a_machine_that_drifts_leaves_ratios_right(slow_from: int) -> None:
    def drifting(milliseconds: float) -> list[float]:
        return [milliseconds] * slow_from + [2 * milliseconds] * 20

    samples = Machine(a=drifting(4), b=drifting(6), c=drifting(0.5)).time(MANY)
    assert samples["b"].value_ms / samples["a"].value_ms == pytest.approx(1.5)
    assert samples["c"].value_ms / samples["a"].value_ms == pytest.approx(0.125)


def test_a_single_round_is_enough_where_it_is_asked_for() -> None:
    sample = Machine(a=[5]).time(ClockSettings(warm_up=0, least_rounds=1, most_rounds=1, seconds=0))["a"]
    assert sample.value_ms == pytest.approx(5)
    assert sample.rounds == 1


def test_passes_that_take_no_time_are_steady() -> None:
    sample = Machine(a=[0]).time(MANY)["a"]
    assert (sample.value_ms, sample.spread) == (0, 0)


def test_the_real_clock_counts_milliseconds() -> None:
    sample = time_side_by_side({"a": lambda: None}, ClockSettings(1, 2, 2, 0))["a"]
    assert 0 <= sample.value_ms < 1000
    assert sample.rounds == 2


def test_steady_passes_are_timed_for_the_least_time_all_the_same() -> None:
    machine = Machine(a=[4], b=[6])
    settings = ClockSettings(warm_up=0, least_rounds=2, most_rounds=100, seconds=2.0, least_seconds=0.1)
    samples = machine.time(settings)
    assert samples["a"].rounds == 10  # of 10 ms each


def test_what_runs_between_passes_is_not_timed() -> None:
    machine = Machine(a=[4], b=[6])

    def pause() -> None:
        machine.calls.append("-")
        machine.seconds += 5.0

    samples = time_side_by_side(machine.runs, ClockSettings(1, 2, 2, 0), between=pause, now=lambda: machine.seconds)
    assert {name: sample.value_ms for name, sample in samples.items()} == pytest.approx({"a": 4, "b": 6})
    assert "".join(machine.calls) == "ab" + "-a-b" * 2


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_cache_pressure_is_something_to_run(size: int) -> None:
    assert cache_pressure(size)() == max(size // 8, 1)


def test_a_pass_that_knows_its_own_time_is_believed() -> None:
    """A GPU's events tell more than the host's clock, which here stands still."""
    settings = ClockSettings(warm_up=0, least_rounds=3, most_rounds=3, seconds=0)
    samples = time_side_by_side({"events": lambda: 2.5, "host": lambda: None}, settings, now=lambda: 1.0)
    assert samples["events"].value_ms == 2.5
    assert samples["host"].value_ms == 0.0
