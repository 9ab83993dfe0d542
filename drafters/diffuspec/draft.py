"""DiffuSpec (arXiv 2510.02358): a diffusion language model's pass, searched from left to right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from drafters.diffusion.draft import Diffusion, DiffusionSession, DraftPlan
from drafters.diffuspec.lattice import build_lattice
from drafters.diffuspec.options import DiffuSpecOptions
from drafters.diffuspec.scorer import ScorerContext, load_scorer
from drafters.diffuspec.search import search_path
from specbench.api import (
    Commit,
    DraftSession,
    Proposal,
    Request,
    TargetView,
    with_candidates,
)


class DiffuSpec(Diffusion):
    """One pass of a diffusion model; path by causal-consistency search, length adaptive."""

    name = "diffuspec"
    Options = DiffuSpecOptions
    options: DiffuSpecOptions

    @property
    def plan(self) -> DraftPlan:
        o = self.options
        return DraftPlan(
            o.length().length,
            o.steps,
            candidates=o.candidates,
            draft_temperature=o.draft_temperature,
        )

    @property
    def details(self) -> dict[str, Any]:
        return {
            "family": self.model.family.name,
            "approximate": self.cache == "prefix_causal",
            "shared_vocabulary": round(self.vocabulary.share, 4),
            "scorer": None if self.scorer is None else self.scorer.kind,
            "scorer_sha256": None if self.scorer is None else self.scorer.sha256,
        }

    def bind(self, target: TargetView) -> None:
        """Load the diffusion model, in the target's dtype and on its device, and the scorer.

        Raises:
            UserError: one of them cannot be loaded, the model cannot have that cache, or a
                vocabulary is not the target's.
        """
        super().bind(target)
        self.scorer = load_scorer(self.options.scorer, target) if self.options.search else None
        stop = self.vocabulary.stop
        stops = [] if stop is None else [stop]
        self.stops = torch.tensor(stops, dtype=torch.long, device=target.device)

    def open(self, request: Request) -> DraftSession:
        return DiffuSpecSession(self, request)


class DiffuSpecSession(DiffusionSession):
    """`DiffusionSession` with a scorer of the committed tokens and an adaptive length."""

    def __init__(self, drafter: DiffuSpec, request: Request) -> None:
        super().__init__(drafter, request)
        self._options = drafter.options
        self._stops = drafter.stops
        self._probe = request.probe
        self._scorer: ScorerContext | None = None
        if drafter.scorer is not None:
            paths = self._options.beam * self._plan.tokens
            self._scorer = drafter.scorer.open(request.capacity, paths)
        self._length = self._options.length()

    @torch.inference_mode()
    def commit(self, commit: Commit) -> None:
        self._length.committed(commit.accepted)
        super().commit(commit)
        if self._scorer is not None:
            self._scorer.extend(commit.tokens)

    def buffers(self) -> Iterable[Tensor]:
        return [*super().buffers(), *(self._scorer.buffers() if self._scorer else ())]

    def _draft_length(self) -> int:
        return self._length.length

    def _propose_from(self, logits: Tensor) -> Proposal:
        own = logits.argmax(-1)
        self._length.drafted(own, self._stops)
        if self._scorer is not None:
            with self._probe.phase("search"):
                own = torch.tensor(self._search(logits, self._scorer), device=own.device)
        count, temperature = self._plan.candidates, self._plan.draft_temperature
        return with_candidates(own, logits[: len(own)], count, temperature, self._generator)

    def _search(self, logits: Tensor, scorer: ScorerContext) -> tuple[int, ...]:
        """Search the best path through the lattice of ``[count, vocabulary]`` logits."""
        options, stop = self._options, self._vocabulary.stop
        lattice = build_lattice(
            logits,
            mass=options.mass,
            most=options.max_candidates,
            stop=stop,
            stop_rule=options.stop_rule,
        )
        return search_path(
            lattice,
            scorer,
            beam=options.beam,
            weight=options.weight,
            stop=stop,
            by_mean=options.stop_rule == "mean",
        ).tokens
