"""An n-gram model over token ids, written as ARPA for KenLM: a causal scorer of drafted paths.

KenLM's words are the decimal token ids, so a scorer belongs to one tokenizer; `scorer.json`
beside it says which. The estimate is interpolated modified Kneser-Ney (Chen and Goodman 1999),
with lmplz's conventions (kpu/kenlm).
"""

import hashlib
import json
import math
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specbench.api import UserError

FACTS = "scorer.json"
FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of counts 1, 2, 3 and more, where the counts of counts leave them undefined."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScorerFacts:
    """What ``scorer.json`` says.

    Attributes:
        file: the model's file, in the same folder.
        vocabulary: number of the tokenizer's ids.
        tokenizer: its `tokenizer_hash`.
    """

    file: str
    order: int
    vocabulary: int
    tokenizer: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the facts in a scorer's folder.

        Raises:
            UserError: there is no such file, or it holds something else.
        """
        path = folder / FACTS
        if not path.is_file():
            raise UserError(
                f"There is no n-gram scorer in {folder}: it has no {FACTS}. "
                "`specbench train ngram` writes one."
            )
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{path} is not what `specbench train ngram` writes: {error}."
            ) from None


def tokenizer_hash(tokenizer: Any) -> str:
    """Sha256 (hex) over every token and its id; "none" where there is no tokenizer."""
    if tokenizer is None:
        return "none"
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def load_kenlm(path: Path) -> Any:
    """Load an ARPA or binary file with KenLM, silently.

    Raises:
        UserError: the module is missing, or cannot read the file.
    """
    try:
        import kenlm
    except ImportError as error:
        raise UserError(
            f"The kenlm module cannot be imported ({error}).",
            "Several distributions bring it and overwrite one another, and removing one breaks the "
            "rest: `pip uninstall kenlm kenlm-ex pypi-kenlm ufal-kenlm`, then "
            "`pip install ufal-kenlm`.",
        ) from error
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        return kenlm.Model(str(path), config)
    except OSError as error:
        raise UserError(f"KenLM cannot read {path}: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True)
class Grams:
    """All n-grams of one order.

    Attributes:
        prefix, suffix: index, in the order below, of the n-gram without its last word and without
            its first; both are 0 for a unigram.
        word: the last word.
        count: what the estimate uses: occurrences in the highest order and where the n-gram
            begins a sentence, else the number of different words before it.
        kept: False where it is pruned.
    """

    prefix: Ints
    suffix: Ints
    word: Ints
    count: Ints
    kept: NDArray[np.bool_]


@dataclass(frozen=True)
class Ngrams:
    """A model: per order its n-grams, their log10 probabilities and log10 back-off weights.

    Words are token ids, then ``<s>``, ``</s>`` and ``<unk>``.
    """

    grams: list[Grams]
    logprobs: list[Floats]
    backoffs: list[Floats]
    unknown: float
    begin: int


def estimate(documents: Sequence[Sequence[int]], order: int, prune: Sequence[int] = ()) -> Ngrams:
    """Estimate an interpolated modified Kneser-Ney model.

    Args:
        documents: token ids; each document is a sentence.
        order: length of the longest n-grams.
        prune: per order, n-grams that occur so often or less are left out of the file; their
            mass goes to the back-off. Must rise; the last one counts for all higher orders.

    Raises:
        ValueError: no text, or an order or thresholds that make no sense.
    """
    limits = [*prune, *[prune[-1] if prune else 0] * order][:order]
    if order < 2 or limits[0] > 0 or sorted(limits) != limits:
        raise ValueError(
            f"order must be at least 2 and prune must start with 0 and rise, not {order}, {prune}"
        )
    if not any(len(document) for document in documents):
        raise ValueError("there is no text to count")
    begin = 1 + max(int(max(document)) for document in documents if len(document))
    grams = count_grams(documents, order, begin, limits)
    probs: list[Floats] = []
    backoffs: list[Floats] = []
    # In the empty context, a word is any that occurs except <s>, or <unk>.
    lower = np.full(1, 1 / len(grams[0].word))
    for gram in grams:
        cut = np.array([0.0, *discounts(gram.count)])[np.minimum(gram.count, 3)]
        # Each n-gram's discounted share of its context's count.
        shares = (gram.count - cut) / np.bincount(gram.prefix, gram.count)[gram.prefix]
        rest = 1 - np.bincount(gram.prefix[gram.kept], shares[gram.kept], minlength=len(lower))
        followed = np.bincount(gram.prefix, minlength=len(lower)) > 0
        backoffs.append(np.where(followed, rest, 1.0))
        # Unigrams have the empty context only, and <s> cannot follow it.
        lower = shares + rest[gram.prefix] * lower[gram.suffix]
        probs.append(lower)
    unknown = backoffs[0][0] / len(grams[0].word)
    # <s> is never predicted; lmplz writes this value.
    probs[0][grams[0].word == begin] = 1.0
    logs = [np.log10(p) for p in probs]
    weights = [np.log10(np.maximum(b, 1e-99)) for b in backoffs[1:]]
    return Ngrams(grams, logs, weights, math.log10(unknown), begin)


def count_grams(
    documents: Sequence[Sequence[int]], order: int, begin: int, limits: Sequence[int]
) -> list[Grams]:
    """Count the n-grams of all orders; ``<s>`` is the word ``begin``, ``</s>`` the next."""
    width = begin + 2
    words = np.concatenate([[begin, *document, begin + 1] for document in documents])
    lengths = np.array([len(document) + 2 for document in documents])
    place = np.arange(len(words)) - np.repeat(lengths.cumsum() - lengths, lengths)
    tables: list[tuple[Ints, Ints, Ints, Ints]] = []
    # Which n-gram of the order below ends at each position.
    ending = np.zeros(len(words), dtype=np.int64)
    for n in range(1, order + 1):
        at = (place >= n - 1).nonzero()[0]
        keys = ending[at - 1] * width + words[at]
        found, first, which, raw = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        tables.append((found // width, ending[at[first]], found % width, raw))
        ending[at] = which
    grams: list[Grams] = []
    begins = np.ones(1, dtype=bool)
    for n, (prefix, suffix, word, raw) in enumerate(tables, start=1):
        begins = word == begin if n == 1 else begins[prefix]
        count = raw
        if n < order:
            before = np.bincount(tables[n][1], minlength=len(word))
            count = np.where(begins, raw, before)
        if n == 1:
            count = np.where(begins, 0, count)
        grams.append(Grams(prefix, suffix, word, count, (raw > limits[n - 1]) | (n == 1)))
    return grams


def discounts(counts: Ints) -> tuple[float, float, float]:
    """Estimate the discounts of counts 1, 2, and 3 and more (Chen and Goodman)."""
    n1, n2, n3, n4 = (int((counts == k).sum()) for k in (1, 2, 3, 4))
    if 0 in (n1, n2, n3):
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if all(0 <= d <= k for k, d in enumerate(found, start=1)) else FALLBACK


def write_arpa(model: Ngrams, path: Path) -> None:
    """Write the model as ARPA text, log10 to five decimals."""
    with path.open("w", encoding="ascii") as stream:
        stream.writelines(line + "\n" for line in _arpa(model))


def _arpa(model: Ngrams) -> Iterator[str]:
    yield "\\data\\"
    for n, gram in enumerate(model.grams, start=1):
        yield f"ngram {n}={int(gram.kept.sum()) + (n == 1)}"
    names = np.array([*map(str, range(model.begin)), "<s>", "</s>"], dtype=object)
    texts = np.array([""], dtype=object)
    levels = zip(model.grams, model.logprobs, [*model.backoffs, None], strict=True)
    for n, (gram, probs, weights) in enumerate(levels, start=1):
        yield f"\n\\{n}-grams:"
        if n == 1:
            yield f"{model.unknown:.5f}\t<unk>\t0"
        last = names[gram.word]
        texts = last if n == 1 else texts[gram.prefix] + " " + last
        for i in gram.kept.nonzero()[0].tolist():
            back = "" if weights is None else f"\t{weights[i]:.5f}"
            yield f"{probs[i]:.5f}\t{texts[i]}{back}"
    yield "\n\\end\\"


def write_scorer(model: Ngrams, folder: Path, *, vocabulary: int, tokenizer: str) -> ScorerFacts:
    """Write the model and ``scorer.json``; in KenLM's binary form if ``build_binary`` is there.

    Args:
        vocabulary, tokenizer: of `ScorerFacts`.

    Raises:
        UserError: ``build_binary`` fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ngram.arpa"
    write_arpa(model, path)
    compiler = shutil.which("build_binary")
    if compiler is not None:
        binary = folder / "ngram.binary"
        done = subprocess.run(
            [compiler, str(path), str(binary)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UserError(f"{compiler} failed on {path}: {done.stderr.strip()[-300:]}.")
        path.unlink()
        path = binary
    facts = ScorerFacts(path.name, len(model.grams), vocabulary, tokenizer)
    (folder / FACTS).write_text(json.dumps(asdict(facts), indent=1) + "\n")
    return facts
