"""Turn the prompts of a suite into the turns that every arm answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.inputs import chat
from specbench.inputs.suite import Prompt, Suite

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Turn:
    """One turn of one prompt; every arm gets the same one.

    Attributes:
        prompt: token ids, earlier turns included.
        budget: the most output tokens.
        seed: random seed of the answer.
    """

    prompt: list[int]
    budget: int
    seed: int


@dataclass(frozen=True)
class Asking:
    """Makes turns from prompts, with the target's tokenizer and template and the run's seed."""

    tokenizer: PreTrainedTokenizerBase
    thinking: str
    seed: int = 0

    def turn(
        self, suite: Suite, prompt: Prompt, number: int, answers: Sequence[Sequence[int]]
    ) -> Turn:
        """Make turn ``number`` (from 1) of a prompt.

        Args:
            suite: the prompt's suite.
            prompt: the prompt with all its turns.
            number: number of the turn.
            answers: output tokens of each earlier turn.
        """
        messages = []
        for text, answer in zip(prompt.turns, answers, strict=False):
            said = self.tokenizer.decode(answer, skip_special_tokens=True)
            messages += [_message("user", text), _message("assistant", said)]
        messages.append(_message("user", prompt.turns[number - 1]))
        return Turn(
            prompt=chat.encode(self.tokenizer, messages, self.thinking),
            budget=suite.max_new_tokens,
            seed=derived_seed(self.seed, suite.name, prompt.id, number),
        )

    def first_turns(self, suite: Suite) -> list[Turn]:
        """Make the first turn of every prompt of a suite."""
        return [self.turn(suite, prompt, 1, ()) for prompt in suite.prompts]


def derived_seed(*parts: object) -> int:
    """Hash ``parts`` into a random seed, which is the same on every machine."""
    text = "\n".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
