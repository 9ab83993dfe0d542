"""Training of a small causal LM of the Qwen3 architecture."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from specbench.api import Target, UserError
from specbench.training.card import stages_of, write_loop_card
from specbench.training.corpus.batches import Batches, PackedBatches, epoch_order
from specbench.training.corpus.data import Corpus, Document, load_corpus
from specbench.training.corpus.tokenizer import (
    END_OF_TEXT,
    TURN_END,
    Encoded,
    encode_chats,
    save_tokenizer,
    tokenizer_of,
    train_tokenizer,
)
from specbench.training.embedded.repetition import (
    RUN,
    WithAnswers,
    load_answers,
    repeated,
    unlikelihood,
)
from specbench.training.embedded.responses import encode_prompt, generate, prompt_of
from specbench.training.loop import Loss, TrainResult, best_device, seeded, train
from specbench.training.settings import ResponseSettings, TargetShape, TrainSettings

VALIDATION_BATCH = 16
REPETITION_PROMPTS = 32
"""Held-out prompts per file that repetition is measured on."""
REPETITION_TOKENS = 256

LOSS = "cross entropy of all tokens, prompts and answers alike"
UNLEARNED = "; and the unlikelihood of repetitions in the model's own answers"
FIGURES = (
    "bits_per_byte counts every token, those of the chat template too, over the bytes of the "
    "messages' contents; repeated_4grams is the mean share of 4-grams that a greedy answer of up "
    f"to {REPETITION_TOKENS} tokens holds already, over up to {REPETITION_PROMPTS} prompts a file"
)


SHAPE = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
    "tied": "tie_word_embeddings",
    "context": "max_position_embeddings",
}
"""The settings of `TargetShape` by the name of their field in transformers' config."""


def prepare(
    texts: Sequence[str], exclude: Sequence[Path], vocabulary: int, tokenizer: str | None, seed: int
) -> tuple[Corpus, PreTrainedTokenizerFast]:
    """Read the corpora; load a tokenizer, or train one on what the first epoch shows.

    Raises:
        UserError: unreadable or evaluation text, or there is no such tokenizer.
    """
    corpus = load_corpus(texts, exclude, seed)
    if tokenizer is not None:
        return corpus, tokenizer_of(tokenizer)
    order = epoch_order(np.array(corpus.weights()), seed, epoch=0)
    return corpus, train_tokenizer((corpus.train[i].text for i in order), vocabulary)


def build_target(shape: TargetShape, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Make a fresh model, with weights from torch's global generator."""
    stops = tokenizer.convert_tokens_to_ids([TURN_END, END_OF_TEXT])
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        **{field: getattr(shape, name) for name, field in SHAPE.items()},
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=stops[0],
        pad_token_id=stops[1],
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=stops[1])
    return model


def next_token_loss(model: Qwen3ForCausalLM, *, rows: int, compiled: bool) -> Loss:
    """Cross entropy in nats of every token after the first, prompts and answers alike.

    Rows after the first ``rows`` hold the model's own answers: they add the unlikelihood of the
    marked tokens instead.
    """

    def compute(tokens: Tensor, marked: Tensor) -> Tensor:
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)[:, :-1]
        likely = F.cross_entropy(logits[:rows].float().flatten(0, 1), tokens[:rows, 1:].flatten())
        if len(tokens) == rows:
            return likely
        return likely + unlikelihood(logits[rows:], tokens[rows:], marked[rows:])

    forward = torch.compile(compute) if compiled else compute
    return lambda batch, generator: forward(batch.tokens, batch.response)


def train_target(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerFast,
    start: TargetShape | str,
    settings: TrainSettings,
    out: Path,
    *,
    command: str,
    answers: Path | None = None,
    resume: bool = False,
) -> TrainResult:
    """Train a target, and write a transformers folder with its card to ``out``.

    It starts from fresh weights of a shape or from a trained model. With ``answers``, the model's
    own, it also unlearns the repetitions in them. Log and checkpoints lie in ``out``/training and
    may be removed afterwards.

    Raises:
        UserError: the trained model to start from cannot be loaded, or as `train`.
    """
    before = stages_of(start) if isinstance(start, str) else []
    model = _started(start, tokenizer, settings.seed)
    result = train(
        model,
        next_token_loss(model, rows=settings.batch, compiled=settings.compile),
        _batches(corpus, tokenizer, answers, settings),
        settings,
        out / "training",
        validate=make_validation(model, tokenizer, corpus, settings.length),
        resume=resume,
    )
    model.to(torch.bfloat16).save_pretrained(out)
    save_tokenizer(tokenizer, out)
    figures = result.validation | greedy_repetition(str(out), corpus)
    result = replace(result, validation=figures)
    facts = {
        "command": command,
        "shape": {name: getattr(model.config, field) for name, field in SHAPE.items()},
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": LOSS + (UNLEARNED if answers else ""),
        "figures": FIGURES,
        "before": before,
    }
    write_loop_card(out, corpus.files, result, facts)
    return result


def _started(
    start: TargetShape | str, tokenizer: PreTrainedTokenizerFast, seed: int
) -> Qwen3ForCausalLM:
    """Make the model as training begins: fresh, or a trained one to go on from, in float32.

    Raises:
        UserError: it cannot be loaded, or has another architecture.
    """
    if isinstance(start, str):
        model = Target.load(start).model.requires_grad_(True)
    else:
        with seeded(seed):
            model = build_target(start, tokenizer)
    if not isinstance(model, Qwen3ForCausalLM):
        raise UserError(f"{start} is of the type {model.config.model_type}; take a qwen3 model.")
    # Plain products on a CPU, where backward through fused attention is slower.
    model.set_attn_implementation("sdpa" if torch.cuda.is_available() else "eager")
    return model.to(best_device()).train()


def _batches(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerFast,
    answers: Path | None,
    settings: TrainSettings,
) -> Batches:
    encoded = encode_chats(tokenizer, [d.messages for d in corpus.train])
    packed = PackedBatches(encoded, corpus.weights(), **settings.shape)
    if answers is None:
        return packed
    marked = load_answers(tokenizer, answers)
    return WithAnswers(packed, PackedBatches(marked, [1.0] * len(marked), **settings.shape))


def make_validation(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Corpus, length: int
) -> Callable[[], dict[str, float]]:
    """Make the measurement of held-out rows: nats per token, bits per byte in all and by file.

    Every token counts, those of the template too; bytes are those of the messages' contents.
    """
    encoded = encode_chats(tokenizer, [d.messages for d in corpus.held_out])

    tokens = sum(len(document.tokens) - 1 for document in encoded)

    def validate() -> dict[str, float]:
        nats = document_nats(model, encoded, length)
        figures = {"validation_loss": sum(nats) / tokens}
        figures["bits_per_byte"] = bits_per_byte(nats, corpus.held_out)
        for source, file in enumerate(corpus.files):
            chosen = [document.source == source for document in corpus.held_out]
            if any(chosen):
                own = list(compress(nats, chosen)), list(compress(corpus.held_out, chosen))
                figures[f"bits_per_byte/{file.stem}"] = bits_per_byte(*own)
        return figures

    return validate


def greedy_repetition(name: str, corpus: Corpus) -> dict[str, float]:
    """Mean share of repeated 4-grams in greedy answers to held-out prompts, by file."""
    target = Target.load(name, device=best_device())
    settings = ResponseSettings(max_new_tokens=REPETITION_TOKENS)
    figures = {}
    for source, file in enumerate(corpus.files):
        chats = [d.messages for d in corpus.held_out if d.source == source]
        prompts = [encode_prompt(target, p) for chat in chats if (p := prompt_of(chat))]
        if prompts:
            asked = prompts[:REPETITION_PROMPTS]
            answers = generate(target, asked, settings, torch.Generator(target.device))
            shares = [int(repeated(a).sum()) / max(1, len(a) - RUN + 1) for a in answers]
            figures[f"repeated_4grams/{file.stem}"] = sum(shares) / len(shares)
    return figures


def document_nats(
    model: Qwen3ForCausalLM, documents: Sequence[Encoded], length: int
) -> list[float]:
    """Nats of all tokens after the first of each document, read in windows of ``length``."""
    windows = [
        (index, torch.from_numpy(document.tokens[start : start + length + 1]).long())
        for index, document in enumerate(documents)
        for start in range(0, max(1, len(document.tokens) - 1), length)
    ]
    windows.sort(key=lambda window: len(window[1]))
    nats = [0.0] * len(documents)
    for at in range(0, len(windows), VALIDATION_BATCH):
        part = windows[at : at + VALIDATION_BATCH]
        padded = torch.nn.utils.rnn.pad_sequence(
            [tokens for _, tokens in part], batch_first=True, padding_value=-100
        ).to(model.device)
        hidden = model.model(input_ids=padded[:, :-1].clamp(min=0), use_cache=False)
        logits = model.lm_head(hidden.last_hidden_state).float().transpose(1, 2)
        losses = F.cross_entropy(logits, padded[:, 1:], reduction="none").sum(1)
        for (index, _), value in zip(part, losses.tolist(), strict=True):
            nats[index] += value
    return nats


def bits_per_byte(nats: Sequence[float], documents: Sequence[Document]) -> float:
    """Bits per byte of the contents of documents."""
    size = sum(len(message["content"].encode()) for d in documents for message in d.messages)
    return sum(nats) / size / math.log(2)
