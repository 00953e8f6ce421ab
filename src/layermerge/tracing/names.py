"""Names: what stands in the user's module tree, and names that do not."""

from __future__ import annotations

from torch import nn


def names_in(model: nn.Module) -> set[str]:
    """The dotted names of all modules, parameters and buffers, every name of a shared one included."""
    modules = {name for name, _ in model.named_modules(remove_duplicate=False)}
    return modules | tensor_names(model)


def tensor_names(model: nn.Module) -> set[str]:
    """The dotted names of all parameters and buffers."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return parameters | {name for name, _ in model.named_buffers(remove_duplicate=False)}


def fresh_name(base: str, taken: set[str]) -> str:
    """`base`, numbered where it is taken; it is from now on."""
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    taken.add(name)
    return name
