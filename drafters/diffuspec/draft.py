"""DiffuSpec (arXiv 2510.02358): a diffusion language model's pass, searched from left to right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from drafters.diffusion.draft import Diffusion, DiffusionSession
from drafters.diffusion.prefix import CACHES
from drafters.diffuspec.lattice import STOP_RULES, build_lattice
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
    check_candidates,
    with_candidates,
)


@dataclass(frozen=True)
class Options:
    """Settings of `DiffuSpec`; the defaults are the paper's.

    Attributes:
        model: hub id or folder of the masked-diffusion model.
        revision: of the hub id.
        search: choose the path by CPS; False drafts the most likely token of every position.
        scorer: folder of an n-gram scorer, or a causal LM with the target's tokenizer; None takes
            the embedded one, which fits the embedded family.
        beam: unfinished paths that the search keeps.
        weight: of the diffusion model in a path's score (lambda); the scorer has the rest.
        mass: probability that a position's candidates hold together (tau).
        max_candidates: the most candidates of a position, the stop token aside.
        stop_rule: where a path may end in the stop token: "first-raw", "natural", "mean" or
            "literal" (`lattice.STOP_RULES`).
        adaptive: adapt the draft length from round to round (ADL).
        k_min, k_max, delta, rho: of the adaptive length; see `AdaptiveLength`.
        tokens: the draft length without ``adaptive``.
        steps: forwards a draft takes; those before the last fill the slots the model is surest of.
        cache: "none", "prefix_causal" (an approximation) or "block"; see `diffusion.prefix`.
        map_vocabulary: draft for a target with another tokenizer, through the tokens they share.
        candidates: more than one verifies the path and so many drafts less one, drawn slot by slot
            from the same pass and as long as the path, and keeps the best (rule "select").
        draft_temperature: at which they are drawn.
    """

    model: str | None = None
    revision: str | None = None
    search: bool = True
    scorer: str | None = None
    beam: int = 3
    weight: float = 0.5
    mass: float = 0.8
    max_candidates: int = 15
    stop_rule: str = "first-raw"
    adaptive: bool = True
    k_min: int = 20
    k_max: int = 30
    delta: int = 10
    rho: float = 0.5
    tokens: int = 30
    steps: int = 1
    cache: str = "none"
    map_vocabulary: bool = False
    candidates: int = 1
    draft_temperature: float = 1.5

    # What the method settles of `diffusion`'s options.
    order: ClassVar[str] = "low_confidence"
    sample: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for option in ("beam", "max_candidates", "tokens", "steps"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} must be at least 1, not {getattr(self, option)}")
        if not 0 <= self.weight <= 1 or not 0 < self.mass <= 1:
            raise ValueError(
                f"weight must lie in [0, 1] and mass in (0, 1], not {self.weight} and {self.mass}"
            )
        for option, known in (("stop_rule", STOP_RULES), ("cache", CACHES)):
            if getattr(self, option) not in known:
                given = getattr(self, option)
                raise ValueError(f"{option} is one of {', '.join(known)}, not {given!r}")
        check_candidates(self.candidates, self.draft_temperature)
        self.length()

    def length(self) -> AdaptiveLength:
        """The length of the first draft, and how it goes on; a fixed one keeps its bounds."""
        if self.adaptive:
            return AdaptiveLength(self.k_min, self.k_max, self.delta, self.rho)
        return AdaptiveLength(self.tokens, self.tokens)


class DiffuSpec(Diffusion):
    """One pass of a diffusion model, the path chosen by CPS, the length by ADL."""

    name = "diffuspec"
    Options = Options

    @property
    def longest(self) -> int:
        return int(self.options.length().length)

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
            UserError: no model is named, one cannot be loaded or have that cache, or a vocabulary
                is not the target's.
        """
        super().bind(target)
        self.scorer = load_scorer(self.options.scorer, target) if self.options.search else None

    def open(self, request: Request) -> DraftSession:
        return DiffuSpecSession(self, request)


class DiffuSpecSession(DiffusionSession):
    """`DiffusionSession` with a scorer of the committed tokens and a length that adapts."""

    def __init__(self, drafter: DiffuSpec, request: Request) -> None:
        super().__init__(drafter, request)
        self._probe = request.probe
        self._scorer: ScorerContext | None = None
        if drafter.scorer is not None:
            paths = drafter.options.beam * drafter.longest
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
