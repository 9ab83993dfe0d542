"""A target's own answers to the prompts of a corpus: what its drafts learn from."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.api import KVCache, Sampling, Target, UserError, draw, probabilities
from specbench.clock import now
from specbench.core.kv import cache_argument
from specbench.records.jsonl import cut_torn_line
from specbench.training.corpus.data import path_and_weight
from specbench.training.corpus.evaluation import training_chats
from specbench.training.corpus.formats import Chat
from specbench.training.loop import best_device, resolved
from specbench.training.progress import Progress
from specbench.training.settings import ResponseSettings

POOL = 16
"""Number of batches whose prompts are sorted by length together."""
THIN_OUT = 16
"""Decoding steps between two removals of finished rows from the batch."""


def write_responses(
    name: str, corpora: Sequence[str], out: Path, settings: ResponseSettings
) -> tuple[int, int]:
    """Append one chat per prompt to ``out``: the first user turn and the target's answer.

    Prompts that ``out`` already answers are skipped, so an interrupted run continues. An answer
    that the budget cut is kept: its last token is then not an end token.

    Returns:
        How many responses ``out`` holds, and how many tokens this run has added.

    Raises:
        UserError: unreadable or evaluation text, or a target that cannot be loaded or has no chat
            template.
    """
    dtype = torch.bfloat16 if resolved(settings.precision) == "bf16" else torch.float32
    target = Target.load(name, device=best_device(), dtype=dtype)
    if target.tokenizer is None or not target.tokenizer.chat_template:
        raise UserError(f"{name} has no chat template, so it has no answers to give.")
    done = _answered(out)
    pending = [chat for chat in select_prompts(corpora, settings) if _key(chat) not in done]
    out.parent.mkdir(parents=True, exist_ok=True)
    answered = tokens = 0
    start = now()
    with out.open("a", encoding="utf-8") as stream, Progress(len(pending), quiet=10) as progress:
        for chats, answers in _batches(target, pending, settings):
            for chat, answer in zip(chats, answers, strict=True):
                text = target.tokenizer.decode(answer, skip_special_tokens=True)
                messages = [*chat, {"role": "assistant", "content": text}]
                stream.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
            stream.flush()
            answered += len(chats)
            tokens += sum(len(answer) for answer in answers)
            speed = tokens / (now() - start)
            progress.show(answered, f"{tokens} tokens  {speed:.0f} tokens/s")
    return len(done) + len(pending), tokens


def select_prompts(corpora: Sequence[str], settings: ResponseSettings) -> list[Chat]:
    """Choose the distinct first prompts of all chats (after a system message), shuffled.

    A weight below 1 takes that share of a file's prompts, any other all of them. Chats that quote
    an evaluation prompt are left out.

    Raises:
        UserError: unreadable or evaluation text.
    """
    order = random.Random(settings.seed)
    found: dict[str, Chat] = {}
    for path, weight in map(path_and_weight, corpora):
        prompts = [prompt for chat in training_chats(path) if (prompt := prompt_of(chat))]
        chosen = order.sample(prompts, round(min(1.0, weight) * len(prompts)))
        found.update({_key(prompt): prompt for prompt in chosen})
    prompts = list(found.values())
    order.shuffle(prompts)
    return prompts[: settings.limit]


def encode_prompt(target: Target, chat: Chat) -> list[int]:
    """Encode a prompt up to where the assistant's answer begins."""
    ids: list[int] = target.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
    return ids


def prompt_of(chat: Chat) -> Chat:
    """The messages up to the first user turn; empty if there is none."""
    roles = [message["role"] for message in chat]
    return chat[: roles.index("user") + 1] if "user" in roles else []


def _key(chat: Chat) -> str:
    return json.dumps(chat, ensure_ascii=False)


def _answered(out: Path) -> set[str]:
    """Keys of the prompts in an earlier output; remove a last line that a kill cut short."""
    cut_torn_line(out)
    if not out.is_file():
        return set()
    # Only a line feed ends a line: an answer may hold other characters that splitlines splits at.
    lines = out.read_text(encoding="utf-8").split("\n")[:-1]
    return {_key(json.loads(line)["messages"][:-1]) for line in lines}


def _batches(
    target: Target, prompts: Sequence[Chat], settings: ResponseSettings
) -> Iterator[tuple[list[Chat], list[list[int]]]]:
    """Answer batches of prompts of similar length."""
    generator = torch.Generator(target.device).manual_seed(settings.seed)
    for start in range(0, len(prompts), settings.batch * POOL):
        chats = prompts[start : start + settings.batch * POOL]
        encoded = [(chat, encode_prompt(target, chat)) for chat in chats]
        pool = [(chat, ids) for chat, ids in encoded if len(ids) <= settings.longest_prompt]
        pool.sort(key=lambda item: len(item[1]))
        for at in range(0, len(pool), settings.batch):
            part = pool[at : at + settings.batch]
            answers = generate(target, [ids for _, ids in part], settings, generator)
            yield [chat for chat, _ in part], answers


@torch.inference_mode()
def generate(
    target: Target,
    prompts: Sequence[Sequence[int]],
    settings: ResponseSettings,
    generator: torch.Generator,
) -> list[list[int]]:
    """Continue all prompts at once, each up to its stop token or the budget."""
    rows = _Rows(target, prompts, settings.max_new_tokens)
    sampling = Sampling(temperature=settings.temperature)
    for step in range(1, settings.max_new_tokens + 1):
        logits = rows.forward()
        noise = torch.rand(len(logits), generator=generator, device=target.device)
        rows.append(draw(probabilities(logits, sampling), noise))
        due = step % THIN_OUT == 0 or step == settings.max_new_tokens
        if due and not rows.thin_out():
            break
    return rows.answers


class _Rows:
    """The unfinished sequences of a batch: left-padded cache, mask, answers so far."""

    def __init__(self, target: Target, prompts: Sequence[Sequence[int]], budget: int) -> None:
        self.target = target
        width = max(len(prompt) for prompt in prompts)
        capacity = width + budget
        self.cache = KVCache(target.num_layers, capacity)
        self.last = torch.zeros(len(prompts), width, dtype=torch.long, device=target.device)
        self.mask = torch.ones(len(prompts), capacity, dtype=torch.long, device=target.device)
        for row, prompt in enumerate(prompts):
            self.last[row, width - len(prompt) :] = torch.tensor(prompt)
            self.mask[row, : width - len(prompt)] = 0
        self.stops = torch.tensor(sorted(target.stop_ids), device=target.device)
        self.place = torch.arange(len(prompts))
        self.columns: list[Tensor] = []
        self.answers: list[list[int]] = [[] for _ in prompts]

    def forward(self) -> Tensor:
        """Read the last columns ``[rows, n]``; return the logits ``[rows, vocabulary]`` after."""
        end = self.cache.length + self.last.shape[1]
        mask = self.mask[:, :end]
        positions = (mask.cumsum(1) - 1).clamp_(min=0)[:, self.cache.length :]
        options: dict[str, Any] = {cache_argument(self.target.model): self.cache}
        out = self.target.model(
            self.last, attention_mask=mask, position_ids=positions, logits_to_keep=1, **options
        )
        logits: Tensor = out.logits[:, -1]
        return logits

    def append(self, tokens: Tensor) -> None:
        """Append the next token ``[rows]`` of every row."""
        self.last = tokens[:, None]
        self.columns.append(tokens)

    def thin_out(self) -> int:
        """Collect the answers, up to a stop token; return how many rows have none and stay."""
        block = torch.stack(self.columns, dim=1)
        stopped = torch.isin(block, self.stops)
        self.columns = []
        for row, tokens, stops in zip(
            self.place.tolist(), block.tolist(), stopped.tolist(), strict=True
        ):
            end = stops.index(True) + 1 if True in stops else len(tokens)
            self.answers[row] += tokens[:end]
        keep = (~stopped.any(1)).nonzero().squeeze(1)
        if len(keep) < len(block):
            self.place = self.place[keep.cpu()]
            self.mask, self.last = self.mask[keep], self.last[keep]
            self.cache.reorder_cache(keep)
        return len(keep)
