"""The contract between a drafter and the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import torch
from torch import Tensor, nn

from specbench.core.options import NoOptions
from specbench.core.proposal import Proposal
from specbench.core.rules import WALK, Rule
from specbench.core.sampling import Sampling

Role = Literal["baseline", "control", "method"]
"""What a drafter is in a comparison. A control (self-test, oracle) is never ranked."""


@dataclass(frozen=True)
class Commit:
    """The truth, as a draft session learns it: what was committed since it was last told.

    The prompt is the first commit. Over all commits there is one token more than there are
    feature rows: the newest token, the anchor, has not been through the target yet.

    Attributes:
        tokens: the newly committed token ids; the last one is the anchor.
        features: ``[rows, taps, hidden]`` target hidden states, in the order of the drafter's
            taps, at the positions of the previous anchor and of all new tokens but the last
            (for the prompt: at every prompt position). None when nothing is tapped.
        accepted: how many proposal tokens of the round are among ``tokens``.
    """

    tokens: tuple[int, ...]
    features: Tensor | None
    accepted: int = 0


@dataclass(frozen=True)
class TargetView:
    """Read-only facts about the target that a drafter may use.

    Attributes:
        name: hub id or folder.
        embedding: the input embedding module, ``[vocabulary, hidden]`` weights.
        norm: the final norm between the last layer and the head, or None where it has no such
            name in the model.
        head: the output head, hidden states to logits.
        config: the target's own (text) configuration.
        tokenizer: its tokenizer, or None.
        stop_ids: tokens that end its answers.
        revision: of the hub id, where one was asked for.
    """

    name: str
    embedding: nn.Module
    norm: nn.Module | None
    head: nn.Module
    config: Any
    tokenizer: Any
    num_layers: int
    hidden_size: int
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    stop_ids: frozenset[int] = frozenset()
    revision: str | None = None


class Probe(Protocol):
    """Something that looks at the phases of a round from outside."""

    def phase(self, name: str) -> AbstractContextManager[object]: ...


class NullProbe:
    """Looks at nothing and costs nothing; headline figures come from runs with it."""

    _nothing = nullcontext()

    def phase(self, name: str) -> AbstractContextManager[object]:
        return self._nothing


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to draft for.

    Attributes:
        sampling: the target's sampling; a drafter that samples applies the same filter.
        seed: seeds the session's own generator; the verifier's noise is another stream.
        capacity: the most positions the sequence can take, prompt and proposals included.
        probe: for a drafter whose drafting has parts worth telling apart: what it does inside
            ``with request.probe.phase("search")`` is counted there and not as "draft".
    """

    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    capacity: int = 0
    probe: Probe = field(default_factory=NullProbe)


class DraftSession(ABC):
    """Drafting for one sequence; owns whatever cache it needs."""

    @abstractmethod
    def commit(self, commit: Commit) -> None:
        """Learn what was committed. The first call brings the prompt and its first token."""

    @abstractmethod
    def propose(self, budget: int) -> Proposal:
        """Propose a tree below the anchor, at most ``budget`` (>= 1) levels deep."""

    def buffers(self) -> Iterable[Tensor]:
        """The preallocated buffers that the session owns, its K/V caches above all.

        They stay in place for the whole sequence: the contract kit compares their addresses.
        """
        return ()


class Drafter(ABC):
    """Long-lived; holds weights.

    Attributes:
        name: as on the command line.
        role: what it is in a comparison.
        Options: frozen dataclass of its settings.
        taps: target boundaries whose hidden states it wants (0 is the embedding output, i the
            residual stream after i decoder layers); known after `bind`.
        width: the most tokens one proposal holds; known after `bind`.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    role: ClassVar[Role] = "method"
    taps: tuple[int, ...] = ()
    width: int = 0

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    @property
    def details(self) -> dict[str, Any]:
        """What `bind` settled beside the options, as JSON values, for the record of a run."""
        return {}

    @property
    def rule(self) -> Rule:
        """The acceptance rule for its proposals at temperature > 0; known before `bind`.

        `WALK` for one-hot tokens, `REJECT` for tokens that come with the distribution they were
        drawn from, or a rule of the drafter's own. At temperature 0 every proposal is walked.
        """
        return WALK

    @abstractmethod
    def bind(self, target: TargetView) -> None:
        """Load weights for this target and check that they fit it.

        Raises:
            UserError: the checkpoint or its tokenizer does not fit the target.
        """

    def prepare(self, prompt: list[int], request: Request) -> None:  # noqa: B027 (optional)
        """Work done before an answer is timed; called for controls only.

        A method must pay for all its work on the clock. The oracle learns the answer here.
        """

    @abstractmethod
    def open(self, request: Request) -> DraftSession:
        """Start a sequence."""


class Unbound(Drafter):
    """Stands in for a drafter that could not be bound: whatever it is asked for fails the same.

    Args:
        error: what went wrong while the drafter was bound.
    """

    name = "unbound"

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def bind(self, target: TargetView) -> NoReturn:
        raise self.error

    def open(self, request: Request) -> NoReturn:
        raise self.error


class Autoregressive(Drafter):
    """No drafter: the empty proposal every round, through the same loop, cache and counting."""

    name = "autoregressive"
    role: ClassVar[Role] = "baseline"

    def bind(self, target: TargetView) -> None:
        self._empty = Proposal.chain(torch.empty(0, dtype=torch.long, device=target.device))

    def open(self, request: Request) -> DraftSession:
        return _Silent(self._empty)


class SelfTest(Autoregressive):
    """Autoregressive decoding once more, as if it were a drafter: an A/A test.

    Its true speedup is 1, so its interval shows the smallest difference this machine can resolve.
    """

    name = "self-test"
    role = "control"


class _Silent(DraftSession):
    def __init__(self, empty: Proposal) -> None:
        self._empty = empty

    def commit(self, commit: Commit) -> None:
        pass

    def propose(self, budget: int) -> Proposal:
        return self._empty
