"""Our loop against others on the same weights and prompts: ``python -m tests.benchmarks``.

1. autoregressive decoding against ``model.generate`` with transformers' own cache;
2. DFlash against the loop of the published ``dflash`` package, on the golden and the tiny pair;
3. where a round's time goes: draft, verify and commit, what the draft phase costs beside its
   own forwards, and the share of time outside model forwards.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table

from specbench.api import Autoregressive, Drafter, Sampling, Target
from specbench.clock import PhaseProbe
from specbench.core.decode import generate
from specbench.inputs.plan import TINY_TARGET, plan_arms
from specbench.inputs.registry import make_drafter, make_options
from specbench.inputs.suite import load_suite
from specbench.run.measure import timed_answer
from specbench.zoo import resolve
from tests.benchmarks.arms import Arm, Comparison, compare

GOLDEN = Path(__file__).parents[1] / "golden" / "dflash"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens a prompt")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tiny = Target.load(resolve(TINY_TARGET), device=device)
    prompts = tiny_prompts(tiny, args.prompts)
    rows = [
        compare(
            "autoregressive / model.generate, tiny",
            hf_generate(tiny),
            ours(tiny),
            prompts,
            args.tokens,
            args.repeats,
        )
    ]
    rows += dflash_rows(tiny, prompts, device, args.tokens, args.repeats)
    show(rows)
    show_phases(tiny, prompts, args.tokens)


def tiny_prompts(target: Target, count: int) -> list[list[int]]:
    turns = [prompt.turns[0] for prompt in load_suite("smoke").prompts]
    return [
        list(
            target.tokenizer.apply_chat_template(
                [{"role": "user", "content": turn}], add_generation_prompt=True, return_dict=False
            )
        )
        for turn in turns[:: max(1, len(turns) // count)][:count]
    ]


def ours(target: Target, drafter: Drafter | None = None) -> Arm:
    drafter = drafter or Autoregressive()
    drafter.bind(target.view())

    def arm(prompt: list[int], tokens: int) -> list[int]:
        return list(generate(target, drafter, prompt, tokens, stop_ids=frozenset()).tokens)

    return arm


def hf_generate(target: Target) -> Arm:
    """transformers' own loop, cache and attention, as a user would call it."""
    model = target.model

    def arm(prompt: list[int], tokens: int) -> list[int]:
        ids = torch.tensor([prompt], device=target.device)
        with native_attention(target):
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                # No id is -1: neither arm stops before its budget.
                eos_token_id=-1,
                do_sample=False,
                pad_token_id=0,
            )
        return out[0, len(prompt) :].tolist()

    return arm


@contextmanager
def native_attention(target: Target) -> Iterator[None]:
    target.model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        target.model.set_attn_implementation(target.attention)


def dflash_rows(
    tiny: Target, prompts: list[list[int]], device: str, tokens: int, repeats: int
) -> list[Comparison]:
    try:
        import dflash.model  # noqa: F401
    except ImportError:
        print("The dflash package is not installed: its rows are left out.")
        return []
    golden = Target.load(str(GOLDEN / "target"), device=device)
    cases = json.loads((GOLDEN / "cases.json").read_text())["cases"]
    rows = []
    for name, target, draft, texts in (
        ("golden", golden, str(GOLDEN / "draft"), [c["prompt"] for c in cases][: len(prompts)]),
        ("tiny", tiny, resolve("tiny-dflash"), prompts),
    ):
        drafter = make_drafter("dflash", make_options("dflash", {"model": draft}))
        rows.append(
            compare(
                f"DFlash / dflash package, {name}",
                package(target, draft),
                ours(target, drafter),
                texts,
                tokens,
                repeats,
            )
        )
    return rows


def package(target: Target, draft: str) -> Arm:
    from dflash.model import DFlashDraftModel, dflash_generate

    model = DFlashDraftModel.from_pretrained(draft, dtype=target.dtype).to(target.device).eval()

    def arm(prompt: list[int], tokens: int) -> list[int]:
        with native_attention(target):
            out = dflash_generate(
                model, target.model, torch.tensor([prompt], device=target.device), tokens, None
            )
        return out[0, len(prompt) :].tolist()

    return arm


def show_phases(target: Target, prompts: list[list[int]], tokens: int) -> None:
    """Where a round's time goes, from a traced pass of its own: never the headline figures."""
    table = Table(
        *("drafter", "AAL", "draft ms/round", "verify ms/round", "update ms/round"),
        *("draft phase / its forwards", "outside forwards %"),
    )
    for name in ("autoregressive", "prompt-lookup", "draft-model", "dflash", "eagle3-chain16",
                 "eagle3"):  # fmt: skip
        arm = plan_arms(("autoregressive", name), TINY_TARGET, None, ())[-1]
        drafter = arm.make()
        drafter.bind(target.view())
        table.add_row(name, *traced(target, drafter, prompts, tokens))
    Console(width=120).print(table)


def traced(
    target: Target, drafter: Drafter, prompts: list[list[int]], tokens: int
) -> tuple[str, ...]:
    """The row of one drafter; the drafter's own prefill, in the first round, is left out."""
    probe = PhaseProbe(target.device)
    modules = draft_modules(drafter)
    timed_answer(target, drafter, prompts[0], tokens, sampling=Sampling(), seed=0)
    with timed_forwards(modules) as drafting, timed_forwards([target.model]) as verifying:
        done = [
            timed_answer(target, drafter, p, tokens, sampling=Sampling(), seed=0, probe=probe)
            for p in prompts
        ]
    rounds = sum(len(one.output.rounds) for one in done)
    emitted = sum(len(r.tokens) for one in done for r in one.output.rounds)
    total = sum(one.decode_seconds + one.prefill_seconds for one in done)
    spent = probe.seconds
    phases = [spent["draft"], spent["verify"] + spent["accept"], spent["update"]]
    drafted = spent["draft"] + spent["update"]
    inside = drafting[0] + verifying[0]
    return (
        f"{emitted / rounds:.2f}",
        *(f"{1e3 * seconds / rounds:.2f}" for seconds in phases),
        f"{drafted / drafting[0]:.2f}" if drafting[0] else "-",
        f"{100 * (1 - inside / total):.1f}",
    )


def draft_modules(drafter: Drafter) -> list[torch.nn.Module]:
    """The parts of a draft model that are called from outside it, its head too."""
    model = getattr(drafter, "model", None) or getattr(drafter, "_model", None)
    if model is None:
        return []
    if isinstance(model, Target):
        return [model.model]
    names = ("fc", "norm", "hidden_norm", "lm_head")
    own = [part for name in names if (part := getattr(model, name, None)) is not None]
    head = [] if getattr(model, "lm_head", None) is not None else [drafter.target.head]
    return [model, *own, *head]


@contextmanager
def timed_forwards(modules: list[torch.nn.Module]) -> Iterator[list[float]]:
    """Seconds inside the outermost of these modules' forwards."""
    spent = [0.0]
    started: list[float] = []

    def enter(*_: object) -> None:
        started.append(time.perf_counter())

    def leave(*_: object) -> None:
        began = started.pop()
        if not started:
            spent[0] += time.perf_counter() - began

    handles = [m.register_forward_pre_hook(enter) for m in modules]
    handles += [m.register_forward_hook(leave) for m in modules]
    try:
        yield spent
    finally:
        for handle in handles:
            handle.remove()


def show(rows: list[Comparison]) -> None:
    table = Table(
        "comparison",
        "reference ms/token",
        "ours ms/token",
        "ratio",
        "middle half",
        "n",
        "same output",
    )
    for r in rows:
        table.add_row(
            r.name,
            f"{r.reference_ms:.2f}",
            f"{r.ours_ms:.2f}",
            f"{r.ratio:.2f}",
            f"{r.low:.2f} to {r.high:.2f}",
            str(r.n),
            "yes" if r.same_output else "NO",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
