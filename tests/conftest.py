"""Settings that every test shares: one thread, fixed seeds, reproducible property tests, names that stay."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

settings.register_profile(
    "fixed", deadline=None, derandomize=True, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named after their argument: a time stamp in them would give each worker other tests to run."""
    return argname if isinstance(val, bytes) else None
