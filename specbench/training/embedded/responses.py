"""A target's own answers to the prompts of a corpus: what its drafts learn from."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.api import KVCache, Sampling, Target, UserError, draw, probabilities
from specbench.core.kv import cache_argument
from specbench.records.jsonl import cut_torn_line
from specbench.training.corpus.data import CorpusSpec, read_chats
from specbench.training.corpus.evaluation import without_evaluation
from specbench.training.corpus.formats import PLAIN_ROLE, Chat
from specbench.training.loop import dtype_of
from specbench.training.progress import ItemProgress
from specbench.training.settings import ResponseSettings

POOL = 16
"""Number of batches whose prompts are sorted by length together."""
THIN_OUT = 16
"""Decoding steps between two removals of finished rows from the batch."""


@dataclass(frozen=True)
class Written:
    """What a file of responses holds after a run."""

    responses: int
    tokens: int


def write_responses(
    name: str, corpora: Sequence[str], out: Path, settings: ResponseSettings
) -> Written:
    """Append one chat per prompt to ``out``: the first user turn and the target's answer.

    Prompts that ``out`` already answers are skipped, so an interrupted run continues. An answer
    that the budget cut is kept: its last token is then not an end token.

    Raises:
        UserError: unreadable or evaluation text, or a target that cannot be loaded or has no chat
            template.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target = Target.load(name, device=device, dtype=dtype_of(settings.precision))
    if target.tokenizer is None or not target.tokenizer.chat_template:
        raise UserError(f"{name} has no chat template, so it has no answers to give.")
    prompts = select_prompts(corpora, settings)
    done = _answered(out)
    pending = [chat for chat in prompts if _key(chat) not in done]
    out.parent.mkdir(parents=True, exist_ok=True)
    tokens = 0
    with out.open("a", encoding="utf-8") as stream, ItemProgress(len(pending)) as progress:
        for chats, answers in _batches(target, pending, settings):
            for chat, answer in zip(chats, answers, strict=True):
                text = target.tokenizer.decode(answer, skip_special_tokens=True)
                messages = [*chat, {"role": "assistant", "content": text}]
                stream.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
            stream.flush()
            tokens += sum(len(answer) for answer in answers)
            progress.advance(len(chats), tokens)
    return Written(len(done) + len(pending), tokens)


def select_prompts(corpora: Sequence[str], settings: ResponseSettings) -> list[Chat]:
    """Choose the distinct first prompts of all chats (after a system message), shuffled.

    A weight below 1 takes that share of a file's prompts, any other all of them. Chats that quote
    an evaluation prompt are left out.

    Raises:
        UserError: unreadable or evaluation text.
    """
    order = random.Random(settings.seed)
    found: dict[str, Chat] = {}
    for spec in map(CorpusSpec.parse, corpora):
        chats = without_evaluation(spec.path.name, list(read_chats(spec.path)))
        prompts = [prompt for chat in chats if (prompt := prompt_of(chat))]
        chosen = order.sample(prompts, round(min(1.0, spec.weight) * len(prompts)))
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
    if chat[0]["role"] == PLAIN_ROLE:
        return []
    for index, message in enumerate(chat):
        if message["role"] == "user":
            return chat[: index + 1]
    return []


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
        pool = []
        for chat in prompts[start : start + settings.batch * POOL]:
            ids = encode_prompt(target, chat)
            if len(ids) <= settings.longest_prompt:
                pool.append((chat, ids))
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
    rows = _Rows(target, prompts, settings)
    sampling = Sampling(temperature=settings.temperature)
    logits = rows.prefill()
    for step in range(settings.max_new_tokens):
        if sampling.greedy:
            tokens = logits.argmax(-1)
        else:
            noise = torch.rand(len(logits), generator=generator, device=target.device)
            tokens = draw(probabilities(logits, sampling), noise)
        rows.append(tokens)
        if step % THIN_OUT == THIN_OUT - 1 and not rows.thin_out():
            break
        if step + 1 < settings.max_new_tokens:
            logits = rows.forward(rows.last[:, None])
    return rows.finish()


class _Rows:
    """The unfinished sequences of a batch: left-padded cache, mask, tokens so far."""

    def __init__(
        self, target: Target, prompts: Sequence[Sequence[int]], settings: ResponseSettings
    ) -> None:
        self.target = target
        width = max(len(prompt) for prompt in prompts)
        capacity = width + settings.max_new_tokens
        self.cache = KVCache(target.num_layers, capacity)
        self.ids = torch.zeros(len(prompts), width, dtype=torch.long, device=target.device)
        self.mask = torch.ones(len(prompts), capacity, dtype=torch.long, device=target.device)
        for row, prompt in enumerate(prompts):
            self.ids[row, width - len(prompt) :] = torch.tensor(prompt)
            self.mask[row, : width - len(prompt)] = 0
        self.stops = torch.tensor(sorted(target.stop_ids), device=target.device)
        self.place = torch.arange(len(prompts))
        self.columns: list[Tensor] = []
        self.answers: list[list[int]] = [[] for _ in prompts]

    def prefill(self) -> Tensor:
        """Logits ``[rows, vocabulary]`` after the prompts."""
        return self.forward(self.ids)

    def forward(self, ids: Tensor) -> Tensor:
        """Append ``[rows, n]``; return the logits ``[rows, vocabulary]`` of the last column."""
        end = self.cache.length + ids.shape[1]
        mask = self.mask[:, :end]
        positions = (mask.cumsum(1) - 1).clamp_(min=0)[:, end - ids.shape[1] :]
        options: dict[str, Any] = {cache_argument(self.target.model): self.cache}
        out = self.target.model(
            ids, attention_mask=mask, position_ids=positions, logits_to_keep=1, **options
        )
        logits: Tensor = out.logits[:, -1]
        return logits

    def append(self, tokens: Tensor) -> None:
        """Append the next token ``[rows]`` of every row."""
        self.last = tokens
        self.columns.append(tokens)

    def thin_out(self) -> int:
        """Take the rows that stopped out of the batch; return how many are left."""
        block = torch.stack(self.columns, dim=1)
        stopped = torch.isin(block, self.stops)
        going = ~stopped.any(1)
        self._collect(block, stopped)
        self.columns = []
        keep = going.nonzero().squeeze(1)
        if len(keep) < len(going):
            self.place = self.place[keep.cpu()]
            self.mask, self.last = self.mask[keep], self.last[keep]
            self.cache.reorder_cache(keep)
        return len(keep)

    def finish(self) -> list[list[int]]:
        """Return the answers to all prompts."""
        if self.columns:
            block = torch.stack(self.columns, dim=1)
            self._collect(block, torch.isin(block, self.stops))
        return self.answers

    def _collect(self, block: Tensor, stopped: Tensor) -> None:
        """Add each row's new tokens ``[rows, n]``, up to its first stop token."""
        for row, tokens, stops in zip(
            self.place.tolist(), block.tolist(), stopped.tolist(), strict=True
        ):
            end = stops.index(True) + 1 if True in stops else len(tokens)
            self.answers[row] += tokens[:end]
