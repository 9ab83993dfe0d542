"""Small n-gram scorers written as files."""

from __future__ import annotations

import random
from pathlib import Path

from drafters.diffuspec.ngram import estimate, write_scorer


def save_scorer(
    folder: Path, vocabulary: int, tokenizer: str = "none", order: int = 3, unseen: int = 0
) -> str:
    """Write a scorer of random text with frequent tokens; the last ``unseen`` ids never occur."""
    chance = random.Random(5)
    text = [
        [min(int(chance.expovariate(0.1)), vocabulary - 1 - unseen) for _ in range(50)]
        for _ in range(40)
    ]
    model = estimate(text, order)
    write_scorer(model, folder, vocabulary=vocabulary, tokenizer=tokenizer)
    return str(folder)
