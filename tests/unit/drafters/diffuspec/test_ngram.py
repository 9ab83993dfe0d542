"""The n-gram scorer: its estimate, its file, KenLM's reading of it."""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drafters.diffuspec.ngram import (
    FALLBACK,
    Ngrams,
    ScorerFacts,
    discounts,
    estimate,
    load_kenlm,
    tokenizer_hash,
    write_arpa,
    write_scorer,
)
from drafters.diffuspec.settings import NgramSettings
from specbench.cli import app
from specbench.errors import UserError
from specbench.training.corpus.tokenizer import tokenizer_of

Gram = tuple[str, ...]


def some_text(seed: int = 0, documents: int = 60) -> list[list[int]]:
    """Skewed ids below 20, so that counts of counts have every value."""
    chance = random.Random(seed)
    return [
        [min(int(chance.expovariate(0.3)), 19) for _ in range(chance.randrange(1, 30))]
        for _ in range(documents)
    ]


def sentences(documents: list[list[int]]) -> list[Gram]:
    return [("<s>", *map(str, document), "</s>") for document in documents]


def twin(documents: list[list[int]], order: int) -> dict[Gram, float]:
    """Chen and Goodman's formula, n-gram by n-gram, without any array."""
    raw: Counter[Gram] = Counter(
        s[i : i + n]
        for s in sentences(documents)
        for n in range(1, order + 1)
        for i in range(len(s) - n + 1)
    )
    left: dict[Gram, set[str]] = defaultdict(set)
    for gram in raw:
        left[gram[1:]].add(gram[0])
    counts = {
        g: c if len(g) == order or g[0] == "<s>" else len(left[g])
        for g, c in raw.items()
        if g != ("<s>",)
    }
    cuts = {}
    for n in range(1, order + 1):
        have = Counter(c for g, c in counts.items() if len(g) == n)
        n1, n2, n3, n4 = (have[k] for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        cuts[n] = (0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    words = [*sorted({w for s in sentences(documents) for w in s} - {"<s>"}), "<unk>"]

    def probability(gram: Gram) -> float:
        if not gram:
            return 1 / len(words)
        siblings = {w: counts.get((*gram[:-1], w), 0) for w in words}
        total = sum(siblings.values())
        if not total:
            return probability(gram[1:])
        cut = {w: cuts[len(gram)][min(c, 3)] for w, c in siblings.items()}
        own = (siblings[gram[-1]] - cut[gram[-1]]) / total
        return own + sum(cut.values()) / total * probability(gram[1:])

    contexts = [(), ("0",), ("<s>",), ("3", "1"), ("<s>", "2"), ("19", "18"), ("0", "0")]
    return {
        (*context, word): probability((*context, word)) for context in contexts for word in words
    }


class Arpa:
    """A reader of ARPA files: a table and the back-off rule, nothing else."""

    def __init__(self, path: Path) -> None:
        self.table: dict[Gram, tuple[float, float]] = {}
        for line in path.read_text().splitlines():
            fields = line.split("\t")
            if len(fields) > 1:
                back = float(fields[2]) if len(fields) > 2 else 0.0
                self.table[tuple(fields[1].split(" "))] = float(fields[0]), back
        self.order = max(map(len, self.table))

    def score(self, context: Gram, word: str) -> float:
        gram = (*context, word)[-self.order :]
        if gram in self.table:
            return self.table[gram][0]
        return self.table.get(gram[:-1], (0.0, 0.0))[1] + self.score(gram[1:-1], word)


def ask_kenlm(path: Path, context: Gram, word: str) -> float:
    """KenLM's own, from the null context."""
    import kenlm

    model = load_kenlm(path)
    state, after = kenlm.State(), kenlm.State()
    model.NullContextWrite(state)
    for one in context:
        if one == "<s>":
            model.BeginSentenceWrite(after)
        else:
            model.BaseScore(state, one, after)
        state, after = after, state
    return float(model.BaseScore(state, word, after))


def arpa(model: Ngrams, folder: Path) -> Path:
    write_arpa(model, folder / "ngram.arpa")
    return folder / "ngram.arpa"


@pytest.mark.parametrize("order", [2, 3])
def test_the_estimate_is_kneser_neys(tmp_path: Path, order: int) -> None:
    text = some_text()
    path = arpa(estimate(text, order), tmp_path)
    read = Arpa(path)
    for gram, want in twin(text, order).items():
        assert read.score(gram[:-1], gram[-1]) == pytest.approx(math.log10(want), abs=2e-5)


@pytest.mark.parametrize("prune", [(), (0, 0, 1), (0, 1, 2)])
def test_kenlm_reads_the_same_scores(tmp_path: Path, prune: tuple[int, ...]) -> None:
    path = arpa(estimate(some_text(), 3, prune), tmp_path)
    read = Arpa(path)
    words = [gram[0] for gram in read.table if len(gram) == 1 and gram[0] != "<s>"]
    chance = random.Random(1)
    for _ in range(60):
        inner = (
            w for w in chance.choices(words, k=chance.randrange(4)) if w not in ("</s>", "<unk>")
        )
        context, word = tuple(inner), chance.choice(words)
        assert ask_kenlm(path, context, word) == pytest.approx(read.score(context, word), abs=1e-4)


@pytest.mark.parametrize("prune", [(), (0, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_distributions_sum_to_one(tmp_path: Path, order: int, prune: tuple[int, ...]) -> None:
    read = Arpa(arpa(estimate(some_text(2), order, prune[:order]), tmp_path))
    words = [gram[0] for gram in read.table if len(gram) == 1 and gram[0] != "<s>"]
    chance = random.Random(3)
    contexts = [tuple(chance.choices(words[1:-1], k=chance.randrange(order))) for _ in range(20)]
    for context in [*contexts, ("<s>",), ("<s>", "0")]:
        total = sum(10 ** read.score(context, word) for word in words)
        assert total == pytest.approx(1, abs=1e-4), context


def test_pruning_leaves_rare_ngrams_out(tmp_path: Path) -> None:
    text = some_text()
    raw = Counter(s[i : i + 3] for s in sentences(text) for i in range(len(s) - 2))
    read = Arpa(arpa(estimate(text, 3, (0, 0, 2)), tmp_path))
    kept = {gram for gram in read.table if len(gram) == 3}
    assert kept == {gram for gram, count in raw.items() if count > 2}


def test_undefined_discounts_fall_back() -> None:
    import numpy as np

    assert discounts(np.array([1, 1, 2, 2, 5])) == FALLBACK  # no count of 3
    # n1..n4 = 1, 9, 1, 1: 1 - 2 (1/19) 9 = 1/19, 2 - 3 (1/19) / 9, 3 - 4/19.
    counts = np.array([1] + [2] * 9 + [3, 4])
    want = (1 / 19, 2 - 3 / 19 / 9, 3 - 4 / 19)
    assert discounts(counts) == pytest.approx(want)
    # n1..n4 = 9, 1, 9, 1: y = 9/11, and 2 - 27 y is negative.
    assert discounts(np.array([1] * 9 + [2] + [3] * 9 + [4])) == FALLBACK


@pytest.mark.parametrize(("order", "prune"), [(1, ()), (3, (1,)), (3, (0, 2, 1))])
def test_senseless_requests_are_refused(order: int, prune: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="order must be"):
        estimate(some_text(), order, prune)
    with pytest.raises(ValueError, match="no text"):
        estimate([[]], 3)


def test_the_binary_is_made_where_the_compiler_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "build_binary"
    compiler.write_text('#!/bin/sh\nhead -c 40 "$1" > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = write_scorer(estimate(some_text(), 2), tmp_path / "out", vocabulary=20, tokenizer="t")
    assert facts.file == "ngram.binary"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["ngram.binary", "scorer.json"]
    assert ScorerFacts.read(tmp_path / "out") == facts
    compiler.write_text("#!/bin/sh\necho it broke >&2\nexit 3\n")
    with pytest.raises(UserError, match="it broke"):
        write_scorer(estimate(some_text(), 2), tmp_path / "out", vocabulary=20, tokenizer="t")


def test_errors_name_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no scorer\.json.*specbench train ngram"):
        ScorerFacts.read(tmp_path)
    (tmp_path / "scorer.json").write_text('{"file": "a"}')
    with pytest.raises(UserError, match="is not what"):
        ScorerFacts.read(tmp_path)
    (tmp_path / "ngram.arpa").write_text("no arpa")
    with pytest.raises(UserError, match="KenLM cannot read"):
        load_kenlm(tmp_path / "ngram.arpa")
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(UserError, match="pip install ufal-kenlm"):
        load_kenlm(tmp_path / "ngram.arpa")


def rows(path: Path, questions: list[str]) -> Path:
    lines = (
        {"instruction": q, "output": f"The answer to {q} is {i}."} for i, q in enumerate(questions)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_command_counts_a_corpus(tmp_path: Path) -> None:
    corpus = rows(tmp_path / "corpus.jsonl", [f"How much is {i} and {i + 1}?" for i in range(300)])
    out = tmp_path / "scorer"
    arguments = ["train", "ngram", "--target", "tiny-target", "--corpus", str(corpus)]
    done = CliRunner().invoke(app, [*arguments, "--out", str(out), "--prune", "0,0,1"])
    assert done.exit_code == 0, done.output
    facts = ScorerFacts.read(out)
    tokenizer = tokenizer_of("tiny-target")
    assert (facts.order, facts.vocabulary) == (3, 4096)
    assert facts.tokenizer == tokenizer_hash(tokenizer)
    card = json.loads((out / "card.json").read_text())
    assert card["data"][0]["train"] + card["data"][0]["held_out"] == 300
    assert card["held_out_nats"] < 1.5
    assert set(card["sha256"]) == {"ngram.arpa", "scorer.json"}
    # What always follows is likely, what never does is not.
    first, second, third = tokenizer("The answer to")["input_ids"][:3]
    path = out / facts.file
    assert ask_kenlm(path, (str(first), str(second)), str(third)) > math.log10(0.9)
    assert ask_kenlm(path, (str(first), str(second)), str(first)) < math.log10(0.01)


def test_the_command_refuses_what_it_must_not_count(tmp_path: Path) -> None:
    suite = tmp_path / "suite.jsonl"
    turns = [["Give me three tips for staying healthy."]]
    suite.write_text("".join(json.dumps({"turns": [
        {"role": "user", "content": turn[0]}, {"role": "assistant", "content": "Sleep."}
    ]}) + "\n" for turn in turns))  # fmt: skip
    arguments = ["train", "ngram", "--target", "tiny-target", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--corpus", str(suite)])
    assert isinstance(done.exception, UserError)
    assert "1 of smoke" in str(done.exception)
    done = CliRunner().invoke(app, [*arguments, "--corpus", f"{suite}:2"])
    assert "without a weight" in str(done.exception)
    done = CliRunner().invoke(app, [*arguments, "--corpus", str(suite), "--prune", "0,x"])
    assert "ngram.prune=x is wrong" in str(done.exception)
    with pytest.raises(ValueError, match="order=7 must lie in 2 to 6"):
        NgramSettings(order=7)


def test_the_command_overwrites_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    arguments = ["train", "ngram", "--target", "no/such-target", "--corpus", "no/such-file"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert isinstance(done.exception, UserError)
    assert str(done.exception) == f"{out} exists and is not empty. Choose another --out."
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
