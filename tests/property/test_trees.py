"""Properties of random trees: derived structure and the walk rule against brute force."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.core.proposal import Proposal
from specbench.core.rules import walk
from specbench.core.sampling import Sampling, draw, probabilities

VOCABULARY = 3


@st.composite
def trees(draw_from: st.DrawFn) -> Proposal:
    count = draw_from(st.integers(0, 12))
    parents = [draw_from(st.integers(-1, node - 1)) for node in range(count)]
    tokens = draw_from(st.lists(st.integers(0, VOCABULARY - 1), min_size=count, max_size=count))
    is_chain = parents == list(range(-1, count - 1)) and draw_from(st.booleans())
    return Proposal(
        torch.tensor(tokens, dtype=torch.long),
        torch.tensor(parents, dtype=torch.long),
        is_chain=is_chain,
    )


def path_to(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@given(trees())
def test_ancestors_and_depths(proposal: Proposal) -> None:
    parents = proposal.parents.tolist()
    size = len(proposal) + 1
    seen = [[False] * size for _ in range(size)]
    for node in range(-1, size - 1):
        for other in (-1, *path_to(parents, node)):
            seen[node + 1][other + 1] = True
    assert proposal.ancestors.tolist() == seen
    assert proposal.depths.tolist() == [sum(row) - 1 for row in seen]
    assert bool(proposal.is_wellformed(VOCABULARY))


class Model:
    """A distribution for every prefix."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *prefix)) % 2**31)
        return torch.randn(VOCABULARY, generator=generator)


@settings(deadline=None)
@given(
    trees(),
    st.sampled_from([Sampling(), Sampling(0.6), Sampling(1.0), Sampling(1.0, top_k=2)]),
    st.integers(0, 1000),
)
def test_walk_equals_plain_decoding_as_far_as_the_tree_reaches(
    proposal: Proposal, sampling: Sampling, seed: int
) -> None:
    model = Model(seed)
    uniforms = torch.rand(len(proposal) + 1, generator=torch.Generator().manual_seed(seed))
    tokens, parents = proposal.tokens.tolist(), proposal.parents.tolist()
    texts = [tuple(tokens[i] for i in path_to(parents, node)) for node in range(-1, len(proposal))]
    plain: tuple[int, ...] = ()
    for uniform in uniforms:
        plain += (int(draw(probabilities(model.logits(plain), sampling), uniform)),)
    reach = max(len(text) for text in texts if text == plain[: len(text)])

    logits = torch.stack([model.logits(text) for text in texts])
    kept = walk(proposal, logits, sampling, uniforms)

    assert kept.tokens == plain[: reach + 1]
    assert list(kept.path) == path_to(parents, kept.path[-1] if kept.path else -1)
    assert tuple(tokens[i] for i in kept.path) == kept.tokens[:-1]
