"""Trains a small causal LM of the Qwen3 architecture from nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from specbench.training.batches import PackedBatches, epoch_order
from specbench.training.card import write_card
from specbench.training.data import Corpus, CorpusSpec, Document, load_corpus
from specbench.training.loop import Loss, TrainResult, TrainSettings, train
from specbench.training.seeding import seeded
from specbench.training.tokenizer import (
    END_OF_TEXT,
    TURN_END,
    Encoded,
    encode_chats,
    load_tokenizer,
    train_tokenizer,
)

VALIDATION_BATCH = 16


@dataclass(frozen=True)
class TargetShape:
    """Sizes of the model; the vocabulary is the tokenizer's."""

    hidden: int = 192
    layers: int = 12
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 64
    intermediate: int = 512
    tied: bool = True
    context: int = 2048


def prepare(
    corpora: Sequence[str],
    exclude: Sequence[Path],
    vocabulary: int,
    tokenizer: str | None,
    seed: int,
) -> tuple[Corpus, PreTrainedTokenizerFast]:
    """Reads the corpora; loads a tokenizer, or trains one on what the first epoch shows."""
    corpus = load_corpus([CorpusSpec.parse(text) for text in corpora], exclude, seed)
    if tokenizer is not None:
        return corpus, load_tokenizer(tokenizer)
    order = epoch_order(np.array(corpus.weights()), seed, epoch=0)
    return corpus, train_tokenizer((corpus.train[i].text for i in order), vocabulary)


def build_target(shape: TargetShape, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A fresh model, its weights drawn from torch's global generator."""
    stops = tokenizer.convert_tokens_to_ids([TURN_END, END_OF_TEXT])
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=stops[0],
        pad_token_id=stops[1],
        dtype="float32",
    )
    # Backward through fused attention is slower than through plain matmuls on a CPU.
    config._attn_implementation = "sdpa" if torch.cuda.is_available() else "eager"
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=stops[1])
    return model


def next_token_loss(model: Qwen3ForCausalLM, *, compiled: bool) -> Loss:
    """Cross entropy in nats of every token after the first, prompts and answers alike."""

    def cross_entropy(tokens: Tensor) -> Tensor:
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)[:, :-1]
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    forward = torch.compile(cross_entropy) if compiled else cross_entropy
    return lambda batch, generator: forward(batch.tokens)


def train_target(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerFast,
    shape: TargetShape,
    settings: TrainSettings,
    out: Path,
    *,
    command: str,
    resume: bool = False,
) -> TrainResult:
    """Trains and writes a transformers folder with its card to `out`.

    Log and checkpoints lie in `out`/training and may be removed afterwards.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with seeded(settings.seed):
        model = build_target(shape, tokenizer).to(device)
    batches = PackedBatches(
        encode_chats(tokenizer, [d.messages for d in corpus.train]),
        corpus.weights(),
        batch=settings.batch,
        length=settings.length,
        seed=settings.seed,
    )
    result = train(
        model,
        next_token_loss(model, compiled=settings.compile),
        batches,
        settings,
        out / "training",
        validate=make_validation(model, tokenizer, corpus, settings.length),
        resume=resume,
    )
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    facts = {"shape": asdict(shape), "parameters": sum(p.numel() for p in model.parameters())}
    write_card(out, corpus.files, settings, result, command=command, facts=facts)
    return result


def make_validation(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Corpus, length: int
) -> Callable[[], dict[str, float]]:
    """Measures held-out rows: nats a token, bits a byte in all and of each file.

    Every token counts, those of the template too; bytes are those of the
    messages' contents.
    """
    encoded = encode_chats(tokenizer, [d.messages for d in corpus.held_out])
    names = [facts.file.partition(".")[0] for facts in corpus.files]

    def validate() -> dict[str, float]:
        nats = document_nats(model, encoded, length)
        per_byte = {
            f"bits_per_byte/{name}": bits_per_byte(nats, corpus.held_out, source)
            for source, name in enumerate(names)
        }
        tokens = sum(len(e.tokens) - 1 for e in encoded)
        return {
            "validation_loss": sum(nats) / tokens,
            "bits_per_byte": bits_per_byte(nats, corpus.held_out),
            **{name: value for name, value in per_byte.items() if math.isfinite(value)},
        }

    return validate


def document_nats(
    model: Qwen3ForCausalLM, documents: Sequence[Encoded], length: int
) -> list[float]:
    """Nats of all tokens after the first of each document, read in windows of `length`."""
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


def bits_per_byte(
    nats: Sequence[float], documents: Sequence[Document], source: int | None = None
) -> float:
    """Over all documents, or those of one file; nan when it has none."""
    chosen = [
        (n, len("".join(m["content"] for m in d.messages).encode()))
        for n, d in zip(nats, documents, strict=True)
        if source is None or d.source == source
    ]
    size = sum(length for _, length in chosen)
    return sum(n for n, _ in chosen) / size / math.log(2) if size else math.nan
