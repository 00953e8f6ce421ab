"""Instructions: what a processor multiplies 8-bit integers with, and how weights have to be quantised for it.

x86 processors with VNNI or AMX, and ARM ones with the dot-product extension, sum products in 32 bits. Other x86 processors
sum two products of an unsigned and a signed byte in 16 bits, which saturates: 255 x 127 x 2 is more than 32,767. With weights
of seven bits it cannot: 255 x 64 x 2 is less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from layermerge.errors import RuntimeUnavailable


@dataclass(frozen=True)
class Instructions:
    """The best that a processor has for 8-bit integers."""

    name: str
    sums_in_32_bits: bool
    arm: bool = False

    @property
    def weight_bits(self) -> int:
        return 8 if self.sums_in_32_bits or self.arm else 7

    @property
    def activations(self) -> str:
        """Unsigned on x86, whose instructions multiply unsigned by signed bytes; signed on ARM."""
        return "int8" if self.arm else "uint8"

    @property
    def scheme(self) -> str:
        """As it is recorded and shown: bits of activations and of weights."""
        return f"{'S8' if self.arm else 'U8'}S{self.weight_bits}"

    def __str__(self) -> str:
        missing = "dot-product extension" if self.arm else "VNNI"
        return self.name if self.sums_in_32_bits else f"{self.name}, no {missing}"


_KNOWN = (
    Instructions("amx_int8", sums_in_32_bits=True),
    Instructions("avx512_vnni", sums_in_32_bits=True),
    Instructions("avx_vnni", sums_in_32_bits=True),
    Instructions("dot", sums_in_32_bits=True, arm=True),
    Instructions("neon", sums_in_32_bits=False, arm=True),
    Instructions("avx512_bw", sums_in_32_bits=False),
    Instructions("avx2", sums_in_32_bits=False),
)
"""The best first, by the names that torch gives them."""
_UNKNOWN = Instructions("unknown", sums_in_32_bits=False)
"""Served by what is right everywhere."""
INSTRUCTIONS: dict[str, Instructions] = {one.name: one for one in (*_KNOWN, _UNKNOWN)}


def instructions_of(capabilities: Mapping[str, Any]) -> Instructions:
    """The best of what a processor has, as `torch.cpu.get_capabilities()` lists it.

    >>> instructions_of({"avx2": True, "avx512_vnni": True}).scheme, instructions_of({"avx2": True}).scheme
    ('U8S8', 'U8S7')
    """
    arm = str(capabilities.get("architecture", "")).lower() in ("aarch64", "arm64")
    has = {name for name, there in capabilities.items() if there is True}
    found = next((one for one in _KNOWN if one.name in has and one.arm is arm), None)
    return found or (INSTRUCTIONS["neon"] if arm else _UNKNOWN)


def instructions_here() -> Instructions:
    return instructions_of(torch.cpu.get_capabilities())


def instructions_named(name: str | None) -> Instructions:
    """Those of this machine, unless others are named: a file can be made for another processor."""
    if name is None:
        return instructions_here()
    if name not in INSTRUCTIONS:
        raise RuntimeUnavailable(f"unknown instruction set '{name[:40]}'; choose one of {', '.join(INSTRUCTIONS)}")
    return INSTRUCTIONS[name]
