"""Names: of the layers and constants of a network that is read from a file, readable and each its own."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

_RESERVED = set(dir(nn.Module())) | {"file_interface", "steps", "results"}
_MOST = 120


class Names:
    """What has been given out; no name is another's prefix, so that a layer never lies within a layer."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._around: set[str] = set()

    def layer(self, node: Any, weight: str) -> str:
        """That of its weight without the last part where exporters keep the network's own names, or else of the node."""
        stem, _, last = weight.rpartition(".")
        if stem and last in ("weight", "w", "gamma", "scale", "kernel"):
            return self._fresh(stem)
        own = ".".join(_scopes(node.name.strip("/").removesuffix(f"/{node.op_type}").split("/")))
        return self._fresh(own or f"{node.op_type.lower()}_{len(self._taken)}")

    def constant(self, name: str) -> str:
        return self._fresh(name.strip("/").replace(".", "_").replace("/", "_"))

    def _fresh(self, wanted: str) -> str:
        parts = [self._legal(part) for part in wanted[-_MOST:].split(".") if part]
        base = ".".join(parts) or "layer"
        if any(".".join(parts[:end]) in self._taken for end in range(1, len(parts))):
            base = base.replace(".", "_")  # it would lie within a layer
        name, number = base, 1
        while name in self._taken or name in self._around:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        pieces = name.split(".")
        self._around.update(".".join(pieces[:end]) for end in range(1, len(pieces)))
        return name

    @staticmethod
    def _legal(part: str) -> str:
        plain = re.sub(r"\W", "_", part, flags=re.ASCII).lstrip("_") or "part"
        return f"{plain}_" if plain in _RESERVED else plain


def _scopes(parts: list[str]) -> list[str]:
    """Modules that lie in a container are written behind it with their whole name: `blocks/blocks.0/conv`."""
    return [part for part, inner in zip(parts, [*parts[1:], ""], strict=True) if not inner.startswith(f"{part}.")]
