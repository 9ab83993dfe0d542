"""Hidden states at the boundaries of decoder layers."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def capture(layers: nn.ModuleList, boundaries: Iterable[int]) -> Iterator[dict[int, Tensor]]:
    """Collect hidden states ``[b, n, hidden]`` by boundary from the forward inside the block.

    Boundary 0 is the input of the first layer, and boundary i is the residual stream after i
    layers.
    """
    captured: dict[int, Tensor] = {}

    def entering(module: nn.Module, args: Any, kwargs: Any) -> None:
        captured[0] = args[0] if args else kwargs["hidden_states"]

    def leaving(boundary: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            captured[boundary] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [
        layers[boundary - 1].register_forward_hook(leaving(boundary))
        if boundary
        else layers[0].register_forward_pre_hook(entering, with_kwargs=True)
        for boundary in set(boundaries)
    ]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()
