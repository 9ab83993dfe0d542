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
"""What an arm is in a comparison. A control (self-test, oracle) is never ranked."""


@dataclass(frozen=True)
class Commit:
    """The tokens that were committed since the previous commit, as a draft session learns them.

    The prompt is the first commit. All commits together hold one token more than feature rows,
    because the target has not processed the newest token, the anchor, yet.

    Attributes:
        tokens: the newly committed token ids; the last one is the anchor.
        features: ``[rows, taps, hidden]`` target hidden states, in the order of the drafter's
            taps, at the positions of the previous anchor and of all new tokens but the last
            (for the prompt: at every prompt position). None if the drafter has no taps.
        accepted: number of the round's proposal tokens among ``tokens``.
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
        norm: the final norm between the last layer and the head, or None if the model has no
            module of this name.
        head: the output head, from hidden states to logits.
        config: the target's own (text) configuration.
        tokenizer: the target's tokenizer, or None.
        stop_ids: tokens that end an answer.
        revision: requested revision of the hub id, or None.
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
    """An observer of the phases of a round."""

    def phase(self, name: str) -> AbstractContextManager[object]: ...


class NullProbe:
    """A probe that records nothing and costs nothing; headline figures come from runs with it."""

    _nothing = nullcontext()

    def phase(self, name: str) -> AbstractContextManager[object]:
        return self._nothing


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to draft for.

    Attributes:
        sampling: the target's sampling; a drafter that samples applies the same filter.
        seed: random seed of the session's own generator; the verifier uses another stream.
        capacity: the most positions the sequence can take, prompt and proposals included.
        probe: lets a drafter time a part of its drafting: the time spent inside
            ``with request.probe.phase("search")`` is counted there and not as "draft".
    """

    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    capacity: int = 0
    probe: Probe = field(default_factory=NullProbe)


class DraftSession(ABC):
    """Drafting for one sequence; it owns the caches that it needs."""

    @abstractmethod
    def commit(self, commit: Commit) -> None:
        """Learn what was committed. The first commit is the prompt and the first output token."""

    @abstractmethod
    def propose(self, budget: int) -> Proposal:
        """Propose a tree below the anchor, at most ``budget`` (>= 1) levels deep."""

    def buffers(self) -> Iterable[Tensor]:
        """Return the preallocated buffers that the session owns, such as its K/V caches.

        They stay in place for the whole sequence: the contract kit compares their addresses.
        """
        return ()


class Drafter(ABC):
    """Proposes tokens for any number of sequences; it is long-lived and holds weights.

    Attributes:
        name: name on the command line.
        role: what it is in a comparison.
        Options: frozen dataclass of its settings.
        taps: target boundaries whose hidden states it needs (0 is the embedding output, i the
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
        """JSON values that `bind` determined and the options do not tell, for the manifest."""
        return {}

    @property
    def rule(self) -> Rule:
        """The acceptance rule for its proposals at temperature > 0; known before `bind`.

        It is `WALK` for one-hot tokens, `REJECT` for tokens with the distributions that they were
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
        """Do untimed work before an answer; this is called for controls only.

        All work of a method must be timed. The oracle learns the answer here.
        """

    @abstractmethod
    def open(self, request: Request) -> DraftSession:
        """Open a draft session for one sequence."""


class Unbound(Drafter):
    """Replaces a drafter that could not be bound; every use raises the same error.

    Args:
        error: the error that binding raised.
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
    """Plain decoding: an empty proposal in every round, with the same loop, cache and counts."""

    name = "autoregressive"
    role: ClassVar[Role] = "baseline"

    def bind(self, target: TargetView) -> None:
        self._empty = Proposal.chain(torch.empty(0, dtype=torch.long, device=target.device))

    def open(self, request: Request) -> DraftSession:
        return _Silent(self._empty)


class SelfTest(Autoregressive):
    """Autoregressive decoding measured a second time, as if it were a method: an A/A test.

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
