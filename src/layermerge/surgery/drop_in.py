"""Drop-in: a compressed network answers to the calls that the original answers to.

The graph is traced for one set of arguments. Callers such as diffusers' pipelines pass more: optional arguments at their
defaults, a single number for a batch of time steps, `return_dict=False`. Hooks translate; the graph stays as it is.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from layermerge.errors import SurgeryError
from layermerge.tracing.inputs import Inputs


class _CallTranslator:
    """Brings a call of the original's signature into the form that was traced."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.signature = inspect.signature(model.forward)
        self.traced = inputs.bound_to(model)
        self.by_name = bool(inputs.kwargs)
        self.wants_tuple = False

    def before(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = self.signature.bind(*args, **kwargs).arguments
        for name, value in bound.items():
            default = self.signature.parameters[name].default
            if name not in self.traced and name != "return_dict" and value is not None and value is not default:
                raise SurgeryError(
                    f"argument '{name}' was not among the example inputs that the network was traced with"
                )
        self.wants_tuple = bound.get("return_dict") is False and "return_dict" not in self.traced
        batch = next(value.shape[0] for value in bound.values() if isinstance(value, Tensor) and value.dim() > 0)
        values = {name: self._spread(bound.get(name, example), example, batch) for name, example in self.traced.items()}
        return ((), values) if self.by_name else (tuple(values.values()), {})

    @staticmethod
    def _spread(value: Any, example: Any, batch: int) -> Any:
        """One number for all samples, where the network was traced with one per sample."""
        if not isinstance(example, Tensor) or example.dim() != 1:
            return value
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=example.dtype)
        return tensor.expand(batch) if tensor.dim() == 0 else tensor

    def after(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
        return tuple(output.values()) if self.wants_tuple and isinstance(output, dict) else output


def follow_calls_of(model: nn.Module, module: nn.Module, inputs: Inputs) -> None:
    """Lets `module` be called as `model` is, and gives it the model's `config`, which pipelines read."""
    translator = _CallTranslator(model, inputs)
    module.register_forward_pre_hook(translator.before, with_kwargs=True)
    module.register_forward_hook(translator.after, with_kwargs=True)
    if hasattr(model, "config"):
        module.config = model.config
