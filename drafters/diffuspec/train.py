"""`specbench train ngram`: from chats to an n-gram scorer with its card."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from drafters.diffuspec.ngram import estimate, load_kenlm, tokenizer_hash, write_scorer
from drafters.diffuspec.settings import NgramSettings
from specbench.api import UserError
from specbench.training.card import write_card
from specbench.training.corpus.data import load_corpus, path_and_weight
from specbench.training.corpus.tokenizer import Encoded, encode_chats, tokenizer_of
from specbench.training.settings import Job


def train_ngram(settings: NgramSettings, job: Job) -> str:
    """Count chats as the target's token ids, and write the scorer with its card to ``job.out``.

    Raises:
        UserError: ``job.out`` holds files, unreadable or evaluation text, a weight, or thresholds
            that make no sense.
    """
    if job.out.exists() and (not job.out.is_dir() or any(job.out.iterdir())):
        raise UserError(f"{job.out} exists and is not empty.", "Choose another --out.")
    if any(path_and_weight(text)[1] != 1 for text in job.corpora):
        raise UserError("An n-gram model counts each text once: give --corpus without a weight.")
    corpus = load_corpus(job.corpora, job.exclude, settings.seed)
    tokenizer = tokenizer_of(job.target)
    encoded = encode_chats(tokenizer, [document.messages for document in corpus.train])
    held_out = encode_chats(tokenizer, [document.messages for document in corpus.held_out])
    try:
        model = estimate([one.tokens.tolist() for one in encoded], settings.order, settings.prune)
    except ValueError as error:
        raise UserError(f"The n-gram model cannot be made: {error}.") from error
    vocabulary = len(tokenizer.get_vocab())
    facts = write_scorer(model, job.out, vocabulary=vocabulary, tokenizer=tokenizer_hash(tokenizer))
    tokens = sum(len(one.tokens) for one in encoded)
    grams = [int(gram.kept.sum()) for gram in model.grams]
    nats = _nats(job.out / facts.file, held_out)
    result = (
        f"{', '.join(f'{count:,}' for count in grams)} n-grams of {tokens:,} tokens, "
        f"{nats:.4f} nats per token on held-out rows"
    )
    card = {
        "command": job.command,
        "target": Path(job.target).name,
        **asdict(settings),
        "smoothing": "interpolated modified Kneser-Ney",
        "tokens": tokens,
        "grams": grams,
        "held_out_nats": nats,
    }
    write_card(job.out, corpus.files, card, _about(card, result))
    return result


def _nats(path: Path, documents: Iterable[Encoded]) -> float:
    """Mean nats per token, the end of each text included; nan without text."""
    model = load_kenlm(path)
    texts = [" ".join(map(str, one.tokens.tolist())) for one in documents]
    count = sum(text.count(" ") + 2 for text in texts)
    log10 = sum(model.score(text, bos=True, eos=True) for text in texts)
    return -log10 * math.log(10) / count if count else math.nan


def _about(card: Mapping[str, Any], result: str) -> str:
    return f"""An n-gram model (KenLM) over the token ids of {card["target"]}, written by

```
{card["command"]}
```

- order {card["order"]}, {card["smoothing"]}, pruned at {list(card["prune"])}
- {result}"""
