"""Our loop against others on the same weights and prompts: ``python -m tests.benchmarks``.

1. autoregressive decoding against ``model.generate`` with transformers' own cache;
2. DFlash against the loop of the published ``dflash`` package, on the golden and the tiny pair;
3. the share of decode time outside model forwards.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from specbench.api import Autoregressive, Drafter, Target
from specbench.core.decode import generate
from specbench.registry import make_drafter
from specbench.suite import load_suite
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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tiny = Target.load(resolve("tiny-target"), device=device)
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
    show_outside(tiny, prompts, args.tokens)


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
                min_new_tokens=tokens,
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
        drafter = make_drafter("dflash", {"model": draft})
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


def show_outside(target: Target, prompts: list[list[int]], tokens: int) -> None:
    """Wall time minus the time inside the target's and the draft model's forwards."""
    for name, draft in (("autoregressive", None), ("dflash", "tiny-dflash")):
        settings = {"model": resolve(draft)} if draft else {}
        drafter = make_drafter(name, settings)
        arm = ours(target, drafter)
        arm(prompts[0], tokens)
        modules = [target.model, *(m for m in vars(drafter).values() if hasattr(m, "forward"))]
        with timed_forwards(modules) as inside:
            start = time.perf_counter()
            for prompt in prompts:
                arm(prompt, tokens)
            total = time.perf_counter() - start
        print(f"{name}: {100 * (1 - inside[0] / total):.1f} % of the time outside model forwards")


@contextmanager
def timed_forwards(modules: list[torch.nn.Module]) -> Iterator[list[float]]:
    spent = [0.0]
    started: list[float] = []
    handles = []
    for module in modules:
        handles.append(
            module.register_forward_pre_hook(lambda *_: started.append(time.perf_counter()))
        )
        handles.append(
            module.register_forward_hook(
                lambda *_: spent.__setitem__(0, spent[0] + time.perf_counter() - started.pop())
            )
        )
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
    Console().print(table)


if __name__ == "__main__":
    main()
