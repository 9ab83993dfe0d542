"""Turn logits into probabilities and tokens, in the same way for target and drafter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; top_k 0 and top_p 1 filter nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                "temperature and top_k must not be negative and top_p must lie in (0, 1], not "
                f"{self.temperature}, {self.top_k} and {self.top_p}"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the filtered float32 distribution of ``[..., vocabulary]`` logits.

    The order is: temperature, top-k (every token that ties with the k-th stays), top-p (a token
    stays while the mass before it is below top_p; among equal tokens the lower id comes first),
    normalisation. Greedy sampling gives the one-hot argmax. Tie-breaking does not depend on the
    number of rows; otherwise verification and plain decoding could filter differently.
    """
    if sampling.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, best, 1.0)
    scores = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    probs = scores.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        ordered *= ordered.cumsum(-1) - ordered < sampling.top_p
        probs = torch.zeros_like(probs).scatter_(-1, order, ordered)
        probs /= probs.sum(-1, keepdim=True)
    return probs


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw tokens ``[...]`` from distributions ``[..., vocabulary]`` by inverse CDF.

    There is one uniform in [0, 1) per token. The same uniform and distribution always give the
    same token, so sampled speculative text can be compared with plain sampling. The sum is in
    float64, because in float32 it would misplace the tail of a large vocabulary.
    """
    cdf = probs.double().cumsum(-1)
    point = uniforms.to(cdf).unsqueeze(-1) * cdf[..., -1:]
    token = torch.searchsorted(cdf, point, right=True).squeeze(-1)
    return token.clamp_(max=probs.shape[-1] - 1)


def seeded_generator(seed: int, stream: str, device: torch.device) -> torch.Generator:
    """Make a generator for one answer; "verify", "reject" and "draft" are independent streams."""
    offset = ("verify", "reject", "draft").index(stream)
    return torch.Generator(device).manual_seed(3 * seed + offset)
