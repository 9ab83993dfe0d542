"""The loop: schedule, exact resumption, errors."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from specbench.errors import UserError
from specbench.training.checkpoint import latest_checkpoint
from specbench.training.corpus.batches import DocumentBatches
from specbench.training.corpus.tokenizer import Encoded
from specbench.training.loop import autocast, make_optimizer, resolved, train
from specbench.training.settings import ResponseSettings, TrainSettings

SETTINGS = TrainSettings(
    steps=12, batch=2, length=8, lr=0.05, log_every=5, validate_every=6, checkpoint_every=4
)


class KilledError(Exception):
    """Stands for a signal in the middle of a run."""


class Noisy(nn.Module):
    """Next-token model with a random mask in its loss and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(16, 4, generator=generator))
        self.norm = nn.Parameter(torch.ones(4))
        self.head = nn.Parameter(torch.randn(16, 4, generator=generator), requires_grad=False)
        self.calls = 0

    def loss(self, batch, generator):
        self.calls += 1
        if self.calls == getattr(self, "killed_at", None):
            raise KilledError
        keep = torch.rand(batch.tokens[:, 1:].shape, generator=generator) < 0.7
        logits = (self.embedding[batch.tokens[:, :-1]] * self.norm) @ self.head.T
        losses = nn.functional.cross_entropy(
            logits.transpose(1, 2), batch.tokens[:, 1:], reduction="none"
        )
        return losses[keep].mean()


def batches():
    generator = np.random.default_rng(0)
    documents = [
        Encoded(generator.integers(0, 16, 8).astype(np.int32), np.ones(8, dtype=bool))
        for _ in range(9)
    ]
    return DocumentBatches(documents, [1.0] * 9, batch=2, length=8, seed=0, pad=0)


def run(folder, *, killed_at=None, resume=False, settings=SETTINGS, model=None):
    model = model or Noisy()
    model.killed_at = killed_at
    result = train(
        model, model.loss, batches(), settings, folder, validate=lambda: {"x": 1.0}, resume=resume
    )
    return model, result


def lines(folder):
    logged = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {(line["step"], "x" in line): line.get("loss") for line in logged}


@pytest.mark.parametrize("killed_at", [5, 6, 12, 19])
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(tmp_path, killed_at):
    settings = replace(SETTINGS, accumulate=2)
    whole, want = run(tmp_path / "whole", settings=settings)
    with pytest.raises(KilledError):
        run(tmp_path / "cut", killed_at=killed_at, settings=settings)
    if latest_checkpoint(tmp_path / "cut") is None:
        with pytest.raises(UserError, match="nothing to resume"):
            run(tmp_path / "cut", resume=True, settings=settings)
        return
    resumed, got = run(tmp_path / "cut", resume=True, settings=settings)
    assert torch.equal(whole.embedding, resumed.embedding)
    assert torch.equal(whole.norm, resumed.norm)
    assert (got.loss, got.tokens) == (want.loss, want.tokens)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


def test_the_loss_falls_and_frozen_parameters_stay(tmp_path):
    before = Noisy()
    model, result = run(tmp_path, settings=replace(SETTINGS, steps=60))
    first = next(iter(lines(tmp_path).values()))
    assert result.loss < first
    assert torch.equal(model.head, before.head)
    assert not torch.equal(model.embedding, before.embedding)
    assert result.validation == {"x": 1.0}


def test_an_earlier_run_is_not_overwritten(tmp_path):
    run(tmp_path)
    with pytest.raises(UserError, match="--resume"):
        run(tmp_path)


def test_other_settings_are_refused_on_resumption(tmp_path):
    with pytest.raises(KilledError):
        run(tmp_path, killed_at=10)
    with pytest.raises(UserError, match=r"lr=0\.05"):
        run(tmp_path, resume=True, settings=replace(SETTINGS, lr=0.1))


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    model = Noisy()
    model.embedding.data.fill_(math.inf)
    with pytest.raises(UserError, match="step 5"):
        run(tmp_path, model=model)


def test_only_the_newest_checkpoint_stays_and_a_half_written_one_is_ignored(tmp_path):
    run(tmp_path)
    (tmp_path / "unfinished-99").mkdir()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-12"]
    assert latest_checkpoint(tmp_path).name == "checkpoint-12"


def test_rate_warms_up_and_falls_along_a_cosine():
    settings = TrainSettings(steps=100, lr=1.0, warmup=0.1, final_lr=0.05)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.525)
    assert rates[-1] == pytest.approx(0.05, abs=1e-3)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_only_matrices_decay():
    optimizer = make_optimizer(
        [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))], SETTINGS
    )
    decays = [(len(g["params"][0].shape), g["weight_decay"]) for g in optimizer.param_groups]
    assert decays == [(2, 0.1), (1, 0.0)]


def test_precision_is_one_of_two():
    with autocast(torch.device("cpu"), "bf16"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with autocast(torch.device("cpu"), "fp32"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    for settings in (SETTINGS, ResponseSettings()):
        with pytest.raises(ValueError, match="bf16, fp32"):
            replace(settings, precision="fp8")
    assert resolved("auto") == ("bf16" if torch.cuda.is_available() else "fp32")
    assert [resolved(name) for name in ("bf16", "fp32")] == ["bf16", "fp32"]


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"length": 7}, {"lr": -1.0}, {"warmup": 1.5}])
def test_settings_out_of_range_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        replace(SETTINGS, **wrong)


def test_the_step_that_comes_is_told_also_after_a_resumption(tmp_path):
    told = []
    for killed_at in (7, None):
        model = Noisy()
        model.killed_at = killed_at
        resume = killed_at is None
        try:
            train(
                model,
                model.loss,
                batches(),
                SETTINGS,
                tmp_path,
                validate=dict,
                before_step=told.append,
                resume=resume,
            )
        except KilledError:
            assert told == list(range(7))
            told.clear()
    assert told == list(range(4, 12)), "the checkpoint is that of step 4"
