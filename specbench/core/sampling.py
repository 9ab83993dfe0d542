"""From logits to probabilities to tokens, the same way for target and drafter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn: temperature 0 is greedy; top_k 0 and top_p 1 filter nothing."""

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
    """Filtered distribution of ``[..., vocabulary]`` logits, float32.

    Temperature, then top-k (all that tie with the k-th stay), then top-p (a token stays while the
    mass before it is below top_p; of equal ones the lower id goes first), then the rest is
    normalised. Greedy sampling gives the one-hot argmax. Ties never hang on how many rows are
    computed together, or verification would filter otherwise than plain decoding.
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
    """Tokens ``[...]`` from distributions ``[..., vocabulary]`` by inverse CDF.

    One uniform in [0, 1) a token: the same uniform and distribution always give the same token,
    which is what makes sampled speculative text comparable with plain sampling. The sum runs in
    float64, since a float32 one over a large vocabulary would misplace the tail.
    """
    cdf = probs.double().cumsum(-1)
    point = uniforms.to(cdf).unsqueeze(-1) * cdf[..., -1:]
    token = torch.searchsorted(cdf, point, right=True).squeeze(-1)
    return token.clamp_(max=probs.shape[-1] - 1)


def seeded_generator(seed: int, stream: str, device: torch.device) -> torch.Generator:
    """A generator of one sample's noise; its streams ("verify", "reject", "draft") are apart."""
    offset = ("verify", "reject", "draft").index(stream)
    return torch.Generator(device).manual_seed(3 * seed + offset)
