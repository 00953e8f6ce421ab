"""The demo: a small trained network, shipped with the package, so that everything can be seen without a download."""

from __future__ import annotations

from pathlib import Path

RECIPE = Path(__file__).with_name("recipe.yaml")
WEIGHTS = Path(__file__).with_name("weights.safetensors")
