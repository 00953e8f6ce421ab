"""Estimates: what rows say together of how long each workload takes within a network.

In: a latency table's rows by workload, pooled. Out: milliseconds with their covariance.
A workload that was timed by itself is off by what its context does: caches, layouts at its borders. Three things tell how much:
the runtime's own profile of the original network, which has single layers both ways; its profiles of merged networks; and the
latency of whole merged networks, to which rows are corrected by a ridge fit, shrunk toward what they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from layermerge.tables.table import Row
from layermerge.tables.workloads import Workload

Floats = NDArray[np.float64]

_ALONE, _IN_NETWORK, _WHOLE = 0.05, 0.02, 0.005
"""How far a row is off besides its spread, relative: a workload by itself, one reported for a network, a whole network."""
_IN_COMMON = 0.03
"""How far all merged workloads are off together, relative: no single layer was like them."""
_TOWARD_ALL = 0.1
"""The weight of all single layers in the ratio of one kind, as a share of their time."""


@dataclass(frozen=True)
class Estimate:
    """Milliseconds, and how far they may be off (one standard deviation)."""

    ms: float
    error_ms: float

    @staticmethod
    def pooled(rows: Sequence[Row], floor: float) -> Estimate:
        """Of rows that measure the same: their mean."""
        ms = fmean(row.value or 0.0 for row in rows)
        spread = fmean(row.spread for row in rows) / math.sqrt(len(rows))
        return Estimate(ms, math.hypot(spread, floor * ms))

    def scaled(self, by: float) -> Estimate:
        return Estimate(self.ms * by, self.error_ms * by)

    def with_other(self, other: Estimate) -> Estimate:
        """Both, each by how much it can be relied on."""
        mine, theirs = (1 / max(one.error_ms, 1e-12) ** 2 for one in (self, other))
        return Estimate((self.ms * mine + other.ms * theirs) / (mine + theirs), 1 / math.sqrt(mine + theirs))


@dataclass(frozen=True)
class Observations:
    """All rows of workloads, by key."""

    workloads: Mapping[str, Workload]
    alone: Mapping[str, Sequence[Row]]
    in_network: Mapping[str, Sequence[Row]]
    layers: Sequence[str]
    """The keys of the network's single layers as they are, one for each layer."""

    @cached_property
    def _alone(self) -> dict[str, Estimate]:
        return {key: Estimate.pooled(rows, _ALONE) for key, rows in self.alone.items()}

    @cached_property
    def _in_network(self) -> dict[str, Estimate]:
        return {key: Estimate.pooled(rows, _IN_NETWORK) for key, rows in self.in_network.items()}

    def alone_ms(self, key: str) -> float:
        return self._alone[key].ms

    @property
    def told(self) -> bool:
        """Whether the runtime reported what single layers take in the original network."""
        return any(key in self._in_network for key in self.layers)

    def ratio(self, kind: str | None = None) -> float:
        """What single layers take in the network, relative to by themselves: all of them, or those of a kind."""
        both = [key for key in self.layers if key in self._in_network and key in self._alone]
        every = _ratio([(self._in_network[key].ms, self._alone[key].ms) for key in both], 0.0, 1.0)
        if kind is None:
            return every
        own = [key for key in both if _kind(self.workloads[key]) == kind]
        pairs = [(self._in_network[key].ms, self._alone[key].ms) for key in own]
        return _ratio(pairs, _TOWARD_ALL * sum(self._alone[key].ms for key in both), every)

    def estimates(self, scale: float) -> dict[str, Estimate]:
        """By workload; `scale` is what rows are multiplied by where the runtime does not report it."""
        found = {}
        for key, alone in self._alone.items():
            found[key] = alone.scaled(self.ratio(_kind(self.workloads[key])) if self.told else scale)
            if key in self._in_network:
                found[key] = found[key].with_other(self._in_network[key])
        return found


def _ratio(pairs: Sequence[tuple[float, float]], weight: float, default: float) -> float:
    above = sum(first for first, _ in pairs) + weight * default
    below = sum(second for _, second in pairs) + weight
    return above / below if below > 0 else default


def _kind(workload: Workload) -> str:
    """Kernels of one kind share code and what they are bound by."""
    spec = workload.spec
    if spec is None:
        return "none"
    if spec.groups > 1:
        return "grouped"
    return "pointwise" if spec.kernel == (1, 1) else "dense"


@dataclass(frozen=True)
class Network:
    """A merged network that was measured whole: how often it has each workload, and by how much its sum was too small."""

    counts: Mapping[str, int]
    measured_ms: float
    missing_ms: float


def fit_to_sums(covariance: Floats, counts: Floats, missing: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """How values change so that their sums come nearer to what was measured, and how sure they are then.

    A row of `counts` says how often a sum has each value, `missing` by how much it was too small, `noise` how far its
    measurement may be off. A ridge fit: values move by how unsure they were.

    >>> change, _ = fit_to_sums(np.diag([1.0, 4.0]), np.array([[1.0, 1.0]]), np.array([5.0]), np.array([0.0]))
    >>> change.tolist()
    [1.0, 4.0]
    """
    reach = covariance @ counts.T
    gain = reach @ np.linalg.inv(counts @ reach + np.diag(noise**2))
    return gain @ missing, covariance - gain @ reach.T


class Corrected:
    """Estimates after a ridge fit to whole networks."""

    def __init__(self, prior: Mapping[str, Estimate], merged: set[str], networks: Sequence[Network]) -> None:
        self.places = {key: place for place, key in enumerate(prior)}
        self.ms: Floats = np.array([one.ms for one in prior.values()])
        errors = np.array([one.error_ms for one in prior.values()])
        shared = np.array([_IN_COMMON * one.ms if key in merged else 0.0 for key, one in prior.items()])
        self.covariance: Floats = np.diag(errors**2) + np.outer(shared, shared)
        if networks:
            self._fit(networks)

    def _fit(self, networks: Sequence[Network]) -> None:
        counts = np.array([self._counts(network.counts) for network in networks])
        noise = np.array([_WHOLE * network.measured_ms for network in networks])
        missing = np.array([network.missing_ms for network in networks])
        change, self.covariance = fit_to_sums(self.covariance, counts, missing, noise)
        self.ms = np.maximum(self.ms + change, 0.0)

    def _counts(self, counts: Mapping[str, int]) -> Floats:
        found = np.zeros(len(self.places))
        for key, count in counts.items():
            found[self.places[key]] = count
        return found

    def of(self, key: str) -> float:
        return float(self.ms[self.places[key]])

    def error_ms(self, counts: Mapping[str, int]) -> float:
        """How far the sum of this many of each may be off: one standard deviation."""
        weights = self._counts(counts)
        return math.sqrt(max(float(weights @ self.covariance @ weights), 0.0))
