"""DiffuSpec (arXiv 2510.02358): a diffusion language model's pass, searched from left to right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drafters.diffusion.draft import Diffusion, DiffusionSession, DraftPlan
from drafters.diffuspec.lattice import build_lattice
from drafters.diffuspec.options import DiffuSpecOptions
from drafters.diffuspec.scorer import ScorerContext, load_scorer
from drafters.diffuspec.search import search_path
from specbench.api import (
    AdaptiveLength,
    Commit,
    DraftSession,
    Proposal,
    Request,
    TargetView,
    before_stop,
    with_candidates,
)


class DiffuSpec(Diffusion):
    """One pass of a diffusion model, the path chosen by CPS, the length by ADL."""

    name = "diffuspec"
    Options = DiffuSpecOptions

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

    def open(self, request: Request) -> DraftSession:
        return DiffuSpecSession(self, request)


class DiffuSpecSession(DiffusionSession):
    """`DiffusionSession` with a scorer of the committed tokens and a length that adapts."""

    def __init__(self, drafter: DiffuSpec, request: Request) -> None:
        super().__init__(drafter, request)
        self._options: DiffuSpecOptions = drafter.options
        self._probe = request.probe
        self._scorer: ScorerContext | None = None
        if drafter.scorer is not None:
            paths = drafter.options.beam * drafter.plan.tokens
            self._scorer = drafter.scorer.open(request.capacity, paths)
        self._length: AdaptiveLength = drafter.options.length()
        stops = [] if drafter.vocabulary.stop is None else [drafter.vocabulary.stop]
        self._stops = torch.tensor(stops, dtype=torch.long, device=drafter.model.device)
        self._generated: Tensor | None = None

    @torch.inference_mode()
    def commit(self, commit: Commit) -> None:
        if self._generated is not None:
            self._length.update(int(self._generated), commit.accepted)
            self._generated = None
        super().commit(commit)
        if self._scorer is not None:
            self._scorer.extend(commit.tokens)

    def _most(self) -> int:
        return self._length.length

    def _from(self, logits: Tensor) -> Proposal:
        raw = logits.argmax(-1)
        self._generated = before_stop(raw, self._stops)
        own = raw
        if self._scorer is not None:
            with self._probe.phase("search"):
                own = torch.tensor(self._search(logits, self._scorer), device=raw.device)
        options = self._options
        return with_candidates(
            own,
            logits[: len(own)],
            options.candidates,
            options.draft_temperature,
            self._generator,
        )

    def _search(self, logits: Tensor, scorer: ScorerContext) -> tuple[int, ...]:
        """The best path through the lattice of ``[count, vocabulary]`` logits, target ids."""
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
