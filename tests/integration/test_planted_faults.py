"""An ordinary run on the smoke suite finds any single fault planted in the verifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.core import rules, verifier
from specbench.core.kv import KVCache
from specbench.core.proposal import Proposal
from specbench.core.rules import WALK, Kept, walk
from specbench.core.target import Target
from specbench.inputs.plan import Plan, Settings, make_plan
from specbench.records.records import load_samples
from specbench.run import runner
from specbench.run.runner import Observer
from specbench.run.runner import run as run_plan

TREE = "oracle[rate=0.7,tokens=3,branches=3]"
Patch = pytest.MonkeyPatch
Plant = Callable[[Patch, Target], None]


def siblings_see_each_other(patch: Patch, target: Target) -> None:
    """Use the mask of a chain for a tree."""
    made = Target._tree_mask

    def causal(self: Target, tree: Proposal, start: int, positions: Tensor) -> Any:
        return made(self, Proposal.chain(tree.tokens), start, positions)

    patch.setattr(Target, "_tree_mask", causal)


def draft_positions_are_shifted(patch: Patch, target: Target) -> None:
    """Shift the positions of the proposal, but not the anchor's, by one."""

    def shift(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        positions = kwargs["position_ids"].clone()
        if kwargs.get("attention_mask") is not None:
            positions[:, 1:] += 1
        return args, kwargs | {"position_ids": positions}

    target.model.register_forward_pre_hook(shift, with_kwargs=True)


def kept_rows_are_not_moved(patch: Patch, target: Target) -> None:
    """After a rejection, keep the right number of rows, but always the first ones."""
    patch.setattr(KVCache, "compact", lambda self, start, rows: self.truncate(start + len(rows)))


def rejected_rows_stay(patch: Patch, target: Target) -> None:
    """Never cut the cache, and silence the check of its length."""
    patch.setattr(KVCache, "compact", lambda self, start, rows: None)
    patch.setattr(verifier, "_select", lambda features, rows: None)
    begun = verifier.Verifier.verify

    def unguarded(self: verifier.Verifier, proposal: Proposal) -> Any:
        self._committed = self.cache.length + 1
        return begun(self, proposal)

    patch.setattr(verifier.Verifier, "verify", unguarded)
    enough = KVCache.__init__
    patch.setattr(KVCache, "__init__", lambda self, layers, size: enough(self, layers, 20 * size))


def the_bonus_comes_from_the_row_before(patch: Patch, target: Target) -> None:
    """Take the bonus from the row before the right one."""

    def late(proposal: Proposal, logits: Tensor, *rest: Any) -> Kept:
        kept = walk(proposal, logits, *rest)
        row = kept.path[-2] + 1 if len(kept.path) > 1 else 0
        return Kept(kept.path, (*kept.tokens[:-1], int(logits[row].argmax())))

    patch.setattr(rules, "WALK", replace(WALK, keep=late))


def drafts_are_not_verified(patch: Patch, target: Target) -> None:
    """Keep the path to the first of the deepest nodes, whatever the target says."""

    def credulous(proposal: Proposal, logits: Tensor, *rest: Any) -> Kept:
        if len(proposal) == 0:
            return walk(proposal, logits, *rest)
        node = int(proposal.depths.argmax()) - 1
        path = torch.nonzero(proposal.ancestors[node + 1, 1:]).flatten().tolist()
        tokens = proposal.tokens[path].tolist()
        return Kept(tuple(path), (*tokens, int(logits[node + 1].argmax())))

    patch.setattr(rules, "WALK", replace(WALK, keep=credulous))


def verdicts(
    target: Path, folder: Path, patch: Patch, drafter: str, plant: Plant | None
) -> set[str]:
    """Return the verdicts of a run with a fault planted after loading and self-check."""
    loaded = runner.load

    def load(plan: Plan) -> Any:
        ready = loaded(plan)
        if plant is not None:
            plant(patch, ready[0])
        return ready

    patch.setattr(runner, "load", load)
    plan = make_plan(
        Settings((drafter,), ("smoke",), str(target), limit=2, max_new_tokens=24, device="cpu")
    )

    outcome = run_plan(plan, folder, "c", Observer())
    assert outcome.failed == 0
    kinds = {s.verdict.kind for s in load_samples(folder) if s.verdict}
    assert (outcome.broken > 0) == ("broken" in kinds)
    return kinds


@pytest.mark.parametrize("drafter", [TREE, "oracle[rate=0.7,tokens=4]"])
def test_a_sound_verifier_is_not_blamed(target: Path, tmp_path: Path, drafter: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kinds = verdicts(target, tmp_path / "r", patch, drafter, None)
    assert kinds <= {"identical", "near-tie"}


@pytest.mark.parametrize(
    "plant",
    [
        siblings_see_each_other,
        draft_positions_are_shifted,
        kept_rows_are_not_moved,
        rejected_rows_stay,
        the_bonus_comes_from_the_row_before,
        drafts_are_not_verified,
    ],
)
def test_a_planted_fault_is_broken_output(target: Path, tmp_path: Path, plant: Plant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        assert "broken" in verdicts(target, tmp_path / "r", patch, TREE, plant)
