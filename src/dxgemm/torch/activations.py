"""Activations that are fused into a product, with their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from dxgemm import epilogues
from dxgemm.errors import SettingError, shown


class Activation(NamedTuple):
    """Fused activation with its derivative.

    Attributes:
        epilogue: the epilogue that computes it.
        backward: (gradient of the output, x) -> gradient of the input.
        reads_output: True if x is the activation's output; False if it is its input.
    """

    epilogue: epilogues.Epilogue
    backward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    reads_output: bool


def _relu_backward(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.threshold_backward(grad, output, 0.0)


def _gelu_tanh_backward(grad: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(grad, pre, approximate="tanh")


def _silu_backward(grad: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, pre)
    sigmoid = torch.sigmoid(pre)  # torch has no derivative of silu_backward
    return grad * sigmoid * (1.0 + pre * (1.0 - sigmoid))


ACTIVATIONS = {
    "relu": Activation(epilogues.relu, _relu_backward, reads_output=True),
    "gelu": Activation(epilogues.gelu, torch.ops.aten.gelu_backward, reads_output=False),
    "gelu_tanh": Activation(epilogues.gelu_tanh, _gelu_tanh_backward, reads_output=False),
    "silu": Activation(epilogues.silu, _silu_backward, reads_output=False),
    "sigmoid": Activation(epilogues.sigmoid, torch.ops.aten.sigmoid_backward, reads_output=True),
    "tanh": Activation(epilogues.tanh, torch.ops.aten.tanh_backward, reads_output=True),
}


def find_activation(name: str) -> Activation:
    """Find the activation with a name.

    Raises:
        SettingError: there is none.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise SettingError(f"activation is {shown(name)}; pass {known}, or None.")
    return ACTIVATIONS[name]
