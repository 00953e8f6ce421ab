"""Clock: how long passes take, on a machine that others use too.

Passes are timed in interleaved rounds, so that a machine that drifts slows all of them alike. The value is a low quantile:
noise only ever adds. Passes that the system interrupted for another process are left out where enough others are there: on a
crowded machine those are most of the long ones and few of the short ones. Rounds continue until the value is steady or the
limit is reached, and how steady it was is kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np

from layermerge.arguments import Count, Must, checked
from layermerge.errors import RuntimeUnavailable

if TYPE_CHECKING:  # a runtime has its clocks, so it imports this module
    from layermerge.runtimes.base import Pass


@checked(RuntimeUnavailable)
@dataclass(frozen=True)
class ClockSettings:
    """When to stop: after `most_rounds` or `seconds`, or sooner when the value is steady to within `spread`.

    Not before `least_rounds` and `least_seconds`: passes of a millisecond are steady within a disturbance that lasts longer.
    """

    warm_up: int = 3
    least_rounds: int = 12
    most_rounds: Count = 200
    seconds: float = 1.0
    spread: float = 0.01
    quantile: Annotated[float, Must(lambda value: 0 <= value <= 1, "a number from 0 to 1")] = 0.2
    least_seconds: float = 0.0

    def divided(self, parts: int) -> ClockSettings:
        """For each of this many that share its time."""
        return replace(
            self,
            least_rounds=-(-self.least_rounds // parts),
            most_rounds=-(-self.most_rounds // parts),
            seconds=self.seconds / parts,
            least_seconds=self.least_seconds / parts,
        )


@dataclass(frozen=True)
class Clocks:
    """How the passes of a latency table are timed."""

    whole: ClockSettings = ClockSettings(
        least_rounds=20, least_seconds=1.0, most_rounds=2000, seconds=4.0, spread=0.005
    )
    workload: ClockSettings = ClockSettings(least_rounds=12, least_seconds=0.1, most_rounds=2000, seconds=0.1)
    """Workloads are short and so are their windows, so that the machine's speed seldom changes within one."""
    pace: ClockSettings = ClockSettings(warm_up=0, least_rounds=2, least_seconds=0.05, most_rounds=2000, seconds=0.05)
    """The whole network's, before and after each workload."""
    recorded: ClockSettings = ClockSettings(
        warm_up=2, least_rounds=6, least_seconds=0.08, most_rounds=60, seconds=0.15, quantile=0.3, spread=0.01
    )
    """A workload in turn with the whole network, where the runtime reports it what operators take."""

    @staticmethod
    def alike(settings: ClockSettings) -> Clocks:
        return Clocks(settings, settings, settings, settings)


@dataclass(frozen=True)
class Sample:
    """A pass's time in milliseconds, how far two halves of its rounds disagree (relative), and how many there were."""

    value_ms: float
    spread: float
    rounds: int


def involuntary_switches() -> int:
    """How often this thread lost its processor to another; always 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


@dataclass(frozen=True)
class Rounds:
    """Passes as they were timed: milliseconds by name and round, and which of them the system did not interrupt."""

    settings: ClockSettings
    times: Mapping[str, list[float]]
    calm: Mapping[str, list[bool]]

    def samples(self) -> dict[str, Sample]:
        return {name: self.sample(name) for name in self.times}

    def sample(self, name: str, values: Sequence[float] | None = None) -> Sample:
        """The value of a pass; or of `values`, what else is known of the same rounds."""
        counted = self._counted(name, self.times[name] if values is None else values)
        value = float(np.quantile(counted, self.settings.quantile))
        return Sample(value, _disagreement(counted, self.settings), len(counted))

    def _counted(self, name: str, values: Sequence[float]) -> list[float]:
        calm = [value for value, undisturbed in zip(values, self.calm[name], strict=True) if undisturbed]
        return calm if len(calm) >= self.settings.least_rounds else list(values)

    @property
    def steady(self) -> bool:
        return all(
            _disagreement(self._counted(name, times), self.settings) <= self.settings.spread
            for name, times in self.times.items()
        )


def time_side_by_side(
    runs: Mapping[str, Pass],
    settings: ClockSettings,
    *,
    between: Pass = lambda: None,
    now: Callable[[], float] = time.perf_counter,
    interruptions: Callable[[], int] = involuntary_switches,
) -> dict[str, Sample]:
    """Times every pass in every round, in turn, with `between` run before each.

    `now` is the clock and `interruptions` counts how often this thread had to give way; tests replace both.
    """
    return run_side_by_side(runs, settings, between=between, now=now, interruptions=interruptions).samples()


def run_side_by_side(
    runs: Mapping[str, Pass],
    settings: ClockSettings,
    *,
    between: Pass = lambda: None,
    now: Callable[[], float] = time.perf_counter,
    used: Callable[[], float] | None = None,
    interruptions: Callable[[], int] = involuntary_switches,
) -> Rounds:
    """The rounds themselves, warm-up left out.

    `used` is the processor time of this process. A pass of one thread takes no longer than that: what is beyond, it waited
    for its processor.
    """
    for run in runs.values():
        _warm_up(run, settings, now)
    found = Rounds(settings, {name: [] for name in runs}, {name: [] for name in runs})
    began = now()
    for done in range(1, settings.most_rounds + 1):
        for name, run in runs.items():
            between()
            so_far, before, start = interruptions(), used() if used else 0.0, now()
            own_ms = run()
            taken = now() - start
            taken = min(taken, used() - before) if used else taken
            found.times[name].append(own_ms if isinstance(own_ms, float) else taken * 1e3)
            found.calm[name].append(interruptions() == so_far)
        if done < settings.least_rounds or now() - began < min(settings.least_seconds, settings.seconds):
            continue
        if now() - began > settings.seconds or found.steady:
            break
    return found


def _warm_up(run: Pass, settings: ClockSettings, now: Callable[[], float]) -> None:
    """Long passes need fewer: one that takes a share of the time that all rounds may take is warm after the first."""
    began = now()
    for _ in range(settings.warm_up):
        run()
        if now() - began > settings.seconds / 4 > 0:
            break


def _disagreement(values: Sequence[float], settings: ClockSettings) -> float:
    """How far the values of even and odd rounds differ, relative to the value."""
    if len(values) < 2:
        return 0.0
    even, odd = (float(np.quantile(values[part::2], settings.quantile)) for part in (0, 1))
    return abs(even - odd) / max(even, odd, 1e-9)


def cache_pressure(size: int) -> Pass:
    """Reads `size` bytes: what the rest of a network does to the caches between two passes of one layer.

    A conv timed alone finds its weights in the cache each time; in a network larger than the cache it never does.
    """
    elsewhere = np.ones(max(size // 8, 1))
    return lambda: elsewhere.sum()
