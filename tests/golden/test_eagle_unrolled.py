"""The published seven-step training-time test, repeated with the recipe's forward and loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.eagle.checkpoint import load_model
from drafters.eagle.model import Eagle3Model
from drafters.eagle.settings import Eagle3Settings
from drafters.eagle.start import draft_ids
from drafters.eagle.train import (
    Teacher,
    cross_entropy,
    discounted,
    select_rows,
    shift,
    teacher_of,
    unroll,
)
from specbench.api import Target

HERE = Path(__file__).parent / "eagle"
STEPS = 7


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return {name: torch.from_numpy(np.asarray(value))
            for name, value in np.load(HERE / "ttt_7step.npz").items()}  # fmt: skip


@pytest.fixture(scope="module")
def draft() -> Eagle3Model:
    model = load_model(HERE / "eagle3", torch.device("cpu"), torch.float32)
    assert isinstance(model, Eagle3Model)
    return model


@pytest.fixture(scope="module")
def outputs(recorded: dict[str, Any], draft: Eagle3Model) -> list[Tensor]:
    target = Target.load(str(HERE / "target"))
    embedding: Any = target.view().embedding.weight
    with torch.no_grad():
        steps = unroll(draft, embedding, recorded["features"], recorded["input_ids"], STEPS)
        return list(steps)


@pytest.fixture(scope="module")
def teacher(recorded: dict[str, Any], draft: Eagle3Model) -> Teacher:
    """Pad the recording's targets, which begin at token 2; earlier targets are never used."""
    target_logits = F.pad(recorded["target_logits_shifted"], (0, 0, 1, 0))
    return teacher_of(target_logits, draft_ids(draft))


def published_mask(recorded: dict[str, Any], teacher: Teacher, step: int) -> Tensor:
    """Return the rows of the published loss, whose mask is not shifted before the first step."""
    length = recorded["input_ids"].shape[1]
    mask = shift(recorded["loss_mask"].bool(), step)
    return mask & shift(teacher.known, 1 + step)[:, :length]


def test_logits_of_every_step(
    recorded: dict[str, Any], draft: Eagle3Model, outputs: list[Tensor]
) -> None:
    assert len(outputs) == STEPS
    assert torch.equal(shift(recorded["input_ids"], 1), recorded["input_ids_shifted"])
    for step, output in enumerate(outputs):
        torch.testing.assert_close(
            draft.logits(output, torch.nn.Identity()),
            recorded[f"step{step}_logits"],
            rtol=0,
            atol=1e-4,
        )


def test_losses_and_accuracies(
    recorded: dict[str, Any], draft: Eagle3Model, outputs: list[Tensor], teacher: Teacher
) -> None:
    means, right = [], []
    for step, output in enumerate(outputs):
        rows = published_mask(recorded, teacher, step)
        logits, probs = select_rows(draft, output, teacher, rows, step)
        means.append(cross_entropy(logits, probs).sum() / rows.numel())
        hits = logits.argmax(-1) == probs.argmax(-1)
        right.append(hits.sum() / recorded["loss_mask"].sum())
    torch.testing.assert_close(torch.stack(means), recorded["plosses"], rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.stack(right), recorded["acces"], rtol=0, atol=1e-6)
    total = discounted(torch.stack(means), Eagle3Settings().decay)
    assert float(total) == pytest.approx(float(recorded["total_loss_0p8"]), abs=2e-6)
