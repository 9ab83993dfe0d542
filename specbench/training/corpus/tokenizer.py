"""A byte-level BPE tokenizer with a ChatML template, and chats as token ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specbench.core.target import load_tokenizer
from specbench.errors import UserError
from specbench.training.corpus.formats import PLAIN_ROLE, Chat

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
MASK = "<|mask|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END, MASK]

# Qwen2's pattern: words with their leading space, every digit alone, runs of
# punctuation, line ends, indentation.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class Encoded:
    """Token ids ``[n]`` of a document and which of them the assistant wrote ``[n]``."""

    tokens: NDArray[np.int32]
    response: NDArray[np.bool_]


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Learn the merges; the special tokens take the first ids."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        mask_token=MASK,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a hub id, a folder or an embedded model.

    Raises:
        UserError: there is none.
    """
    found: PreTrainedTokenizerBase | None = load_tokenizer(name)
    if found is None:
        raise UserError(f"There is no tokenizer under {name!r}.", "Name a model that has one.")
    return found


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer without the traces of where it was loaded from."""
    for trace in ("is_local", "local_files_only", "name_or_path"):
        tokenizer.init_kwargs.pop(trace, None)
    tokenizer.save_pretrained(folder)


def encode_chats(tokenizer: PreTrainedTokenizerBase, chats: Sequence[Chat]) -> list[Encoded]:
    """Encode chats by the tokenizer's own template, and mark what the assistant wrote.

    The chat is rendered up to each answer with the generation prompt, and again with the answer,
    so any template that only appends works. The parts are tokenised separately, as they are when
    a model decodes.
    """
    parts = [_parts(tokenizer, chat) for chat in chats]
    flat = [text for chat in parts for text, _ in chat]
    ids = iter(tokenizer(flat, add_special_tokens=False)["input_ids"] if flat else [])
    return [_join([(next(ids), response) for _, response in chat]) for chat in parts]


def _parts(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> list[tuple[str, bool]]:
    """Cut the rendered chat into (text, written by the assistant)."""
    end = tokenizer.eos_token or ""
    if chat[0]["role"] == PLAIN_ROLE:
        return [(chat[0]["content"] + end, True)]
    parts: list[tuple[str, bool]] = []
    done = ""
    for index, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        prompt = render(tokenizer, chat[:index], add_generation_prompt=True)
        whole = render(tokenizer, chat[: index + 1], add_generation_prompt=False)
        answer, stop, tail = whole[len(prompt) :].rpartition(end) if end else (whole, "", "")
        parts += [(prompt[len(done) :], False), (answer + stop, True), (tail, False)]
        done = whole
    return [(text, response) for text, response in parts if text]


def render(tokenizer: PreTrainedTokenizerBase, chat: Chat, **options: Any) -> str:
    """Render a chat by the tokenizer's template."""
    return str(tokenizer.apply_chat_template(chat, tokenize=False, **options))


def _join(parts: Sequence[tuple[Sequence[int], bool]]) -> Encoded:
    tokens = np.array([token for ids, _ in parts for token in ids], dtype=np.int32)
    response = np.array([flag for ids, flag in parts for _ in ids], dtype=np.bool_)
    return Encoded(tokens, response)
