"""`specbench train ngram`: from chats to an n-gram scorer with its card."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UserError
from specbench.training.card import file_hashes
from specbench.training.corpus.data import CorpusSpec, load_corpus
from specbench.training.corpus.evaluation import refuse_evaluation_rows
from specbench.training.corpus.tokenizer import Encoded, encode_chats, load_tokenizer
from specbench.training.ngram import estimate, load_kenlm, tokenizer_hash, write_scorer
from specbench.zoo import resolve


@dataclass(frozen=True)
class NgramRun:
    """What is asked for.

    Attributes:
        target: whose tokenizer the ids are of.
        prune: per order, n-grams that occur so often or less are left out.
        seed: of the held-out rows.
    """

    target: str
    corpora: tuple[str, ...]
    exclude: tuple[Path, ...]
    out: Path
    order: int = 3
    prune: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class NgramResult:
    """Tokens counted, n-grams kept of each order, and nats a token on the held-out rows."""

    tokens: int
    grams: tuple[int, ...]
    held_out_nats: float


def train_ngram(run: NgramRun, command: str) -> NgramResult:
    """Counts the chats as the target's token ids and writes the scorer to `run.out`.

    Raises:
        UserError: unreadable or evaluation text, a weight, an order or thresholds that make no
            sense.
    """
    specs = [CorpusSpec.parse(corpus) for corpus in run.corpora]
    if any(spec.weight != 1 for spec in specs):
        raise UserError("An n-gram model counts each text once: give --corpus without a weight.")
    corpus = refuse_evaluation_rows(load_corpus(specs, run.exclude, run.seed))
    tokenizer = load_tokenizer(resolve(run.target))
    encoded = encode_chats(tokenizer, [document.messages for document in corpus.train])
    held_out = encode_chats(tokenizer, [document.messages for document in corpus.held_out])
    try:
        model = estimate([one.tokens.tolist() for one in encoded], run.order, run.prune)
    except ValueError as error:
        raise UserError(f"The n-gram model cannot be made: {error}.") from error
    facts = write_scorer(
        model,
        run.out,
        vocabulary=len(tokenizer.get_vocab()),
        tokenizer=tokenizer_hash(tokenizer),
    )
    result = NgramResult(
        tokens=sum(len(one.tokens) for one in encoded),
        grams=tuple(int(gram.kept.sum()) for gram in model.grams),
        held_out_nats=_nats(run.out / facts.file, held_out),
    )
    _write_card(run, [asdict(file) for file in corpus.files], result, command)
    return result


def _nats(path: Path, documents: Iterable[Encoded]) -> float:
    """Mean nats a token, the end of the text among them; nan without text."""
    model = load_kenlm(path)
    texts = [" ".join(map(str, one.tokens.tolist())) for one in documents]
    count = sum(text.count(" ") + 2 for text in texts)
    log10 = sum(model.score(text, bos=True, eos=True) for text in texts)
    return -log10 * 2.302585092994046 / count if count else float("nan")


def _write_card(
    run: NgramRun, files: Sequence[dict[str, Any]], result: NgramResult, command: str
) -> None:
    card = {
        "command": command,
        "target": Path(run.target).name,
        "order": run.order,
        "prune": list(run.prune),
        "smoothing": "interpolated modified Kneser-Ney",
        "seed": run.seed,
        **asdict(result),
        "data": list(files),
        "sha256": file_hashes(run.out),
    }
    (run.out / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (run.out / "README.md").write_text(_readme(run.out.name, card))


def _readme(name: str, card: dict[str, Any]) -> str:
    files = "\n".join(
        f"| {f['file']} | {f['train']} | {f['held_out']} | {f['excluded']} | {f['licence']} "
        f"| `{f['sha256'][:16]}` |"
        for f in card["data"]
    )
    grams = ", ".join(f"{count:,}" for count in card["grams"])
    hashes = "\n".join(f"- `{file}`: `{digest}`" for file, digest in card["sha256"].items())
    return f"""# {name}

An n-gram model over the token ids of {card["target"]}, KenLM's ARPA or binary, written by

```
{card["command"]}
```

- order {card["order"]}, {card["smoothing"]}, pruned at {card["prune"] or "nothing"}
- {card["tokens"]:,} tokens counted; n-grams kept by order: {grams}
- {card["held_out_nats"]:.4f} nats a token on the held-out rows

| data | train | held out | left out | licence | sha256 |
| --- | ---: | ---: | ---: | --- | --- |
{files}

Rows left out quote an evaluation prompt or share a run of 13 words with an excluded file.

{hashes}
"""
