"""The one training loop: any module, any loss over batches of token ids; seeded weights."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from specbench.clock import now
from specbench.errors import UserError
from specbench.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from specbench.training.corpus.batches import Batch, Batches
from specbench.training.progress import Progress
from specbench.training.settings import TrainSettings

Loss = Callable[[Batch, torch.Generator], Tensor]
"""The scalar loss of a batch; random choices come from the generator, which is on the CPU."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        loss: mean of the last ``log_every`` steps, in nats.
        tokens: seen in all, padding included.
        validation: the last validation figures.
        settings: as they were used, with a precision instead of ``auto``.
    """

    settings: TrainSettings
    loss: float
    tokens: int
    validation: dict[str, float]


def train(
    module: nn.Module,
    loss: Loss,
    batches: Batches,
    settings: TrainSettings,
    folder: Path,
    *,
    validate: Callable[[], dict[str, float]],
    before_step: Callable[[int], None] = lambda step: None,
    resume: bool = False,
) -> TrainResult:
    """Train the parameters of ``module`` that require a gradient.

    ``folder`` gets the log and the checkpoints. The generator of a step is seeded with the step's
    number, so a resumed run draws what an uninterrupted one would.

    Raises:
        UserError: ``folder`` holds an unfinished run and ``resume`` is not set, or there is nothing
            to resume, or the loss is not finite.
    """
    settings = replace(settings, precision=resolved(settings.precision))
    trainer = _Trainer(module, loss, batches, settings, folder)
    if resume:
        trainer.restore()
    elif latest_checkpoint(folder) is not None:
        raise UserError(
            f"{folder} holds an unfinished run.", "Add --resume or choose another --out."
        )
    with Progress(settings.steps, trainer.step) as progress:
        while trainer.step < settings.steps:
            before_step(trainer.step)
            trainer.advance()
            if trainer.due(settings.log_every):
                progress.show(trainer.step, trainer.report())
            if trainer.due(settings.validate_every):
                progress.note(trainer.step, trainer.validated(validate))
            if trainer.due(settings.checkpoint_every):
                trainer.save()
    return TrainResult(settings, trainer.last_loss, trainer.tokens, trainer.validation)


class _Trainer:
    """State of a run: optimizer, step, place in the data, running loss."""

    SAVED = ("step", "tokens", "running", "last_loss", "validation")

    def __init__(
        self, module: nn.Module, loss: Loss, batches: Batches, settings: TrainSettings, folder: Path
    ) -> None:
        self.settings, self.folder = settings, folder
        self.module, self.loss, self.batches = module, loss, batches
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = make_optimizer(self.parameters, settings)
        self.step = self.tokens = 0
        self.last_loss = math.nan
        self.validation: dict[str, float] = {}
        self.running: list[Tensor] = []
        self._clock, self._clock_tokens = now(), 0
        folder.mkdir(parents=True, exist_ok=True)

    def advance(self) -> None:
        """Take one optimizer step over ``accumulate`` batches."""
        settings = self.settings
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate(self.step)
        for _ in range(settings.accumulate):
            batch = self.batches.next().to(self.device)
            with autocast(self.device, settings.precision):
                loss = self.loss(batch, generator)
            torch.autograd.backward(loss / settings.accumulate)
            self.running.append(loss.detach())
            self.tokens += batch.tokens.numel()
        torch.nn.utils.clip_grad_norm_(self.parameters, settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1

    def due(self, every: int) -> bool:
        """True at every ``every``-th step, and at the last one."""
        return self.step % every == 0 or self.step == self.settings.steps

    def report(self) -> str:
        """Log the mean loss and the speed since the last report, and put them in words."""
        if self.running:
            self.last_loss = torch.stack(self.running).mean().item()
            self.running.clear()
        if not math.isfinite(self.last_loss):
            raise UserError(f"The loss is {self.last_loss} at step {self.step}.", "Lower --lr.")
        speed = (self.tokens - self._clock_tokens) / (now() - self._clock)
        self._clock, self._clock_tokens = now(), self.tokens
        rate = self.settings.rate(self.step - 1)
        self._log(loss=self.last_loss, lr=rate, tokens=self.tokens, tokens_per_second=speed)
        return f"loss {self.last_loss:.3f}  {speed:.0f} tokens/s"

    def validated(self, validate: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Validate the present weights; the time it takes does not count as training."""
        start = now()
        training = self.module.training
        self.module.eval()
        with torch.no_grad(), autocast(self.device, self.settings.precision):
            self.validation = validate()
        self.module.train(training)
        self._clock += now() - start
        self._log(**self.validation)
        return self.validation

    def save(self) -> None:
        """Write everything that `restore` needs."""
        state = {name: getattr(self, name) for name in self.SAVED} | {
            "batches": self.batches.state(),
            "settings": repr(self.settings),
            "optimizer": self.optimizer.state_dict(),
        }
        save_checkpoint(self.folder, self.module, state, self.step)

    def restore(self) -> None:
        """Continue from the newest checkpoint of the folder."""
        found = latest_checkpoint(self.folder)
        if found is None:
            raise UserError(f"There is nothing to resume in {self.folder}.")
        state = load_checkpoint(found, self.module)
        if state["settings"] != repr(self.settings):
            raise UserError(
                f"The run in {self.folder} has other settings.", f"It had {state['settings']}."
            )
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.restore(state["batches"])
        for name in self.SAVED:
            setattr(self, name, state[name])
        self._clock_tokens = self.tokens

    def _log(self, **figures: float) -> None:
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({"step": self.step, **figures}) + "\n")


def make_optimizer(parameters: list[nn.Parameter], settings: TrainSettings) -> torch.optim.AdamW:
    """Make AdamW with weight decay on matrices only."""
    matrices = [p for p in parameters if p.ndim >= 2]
    others = [p for p in parameters if p.ndim < 2]
    decays = ((matrices, settings.weight_decay), (others, 0.0))
    groups = [{"params": group, "weight_decay": decay} for group, decay in decays if group]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), fused=True)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Mixed precision for ``bf16``, nothing for ``fp32``."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def resolved(precision: str) -> str:
    """``bf16`` or ``fp32``, also where ``auto`` leaves it to the machine."""
    if precision != "auto":
        return precision
    return "bf16" if torch.cuda.is_available() else "fp32"


def best_device() -> str:
    """CUDA where there is a device, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator, which initialisers draw from, and restore it afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # noqa: TID251 (initialisers take no generator)
        yield
