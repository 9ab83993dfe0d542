"""From a conversation to the target's own prompt tokens."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SWITCH = "enable_thinking"
_DATE = "date_string"
_FIXED_DATE = "26 Jul 2024"


def encode(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], thinking: str
) -> list[int]:
    """Prompt tokens of a conversation that ends with the user's turn.

    The target's own chat template is used, up to where the answer starts. A target without a
    template gets the raw texts, joined by blank lines where there are earlier turns. A template
    that would print today's date (Llama 3's does) gets a fixed date, so that the same command asks
    the same tomorrow.

    Args:
        messages: ``{"role": ..., "content": ...}`` in order.
        thinking: "on" or "off"; it has an effect only where the template has the switch.

    Raises:
        UserError: ``thinking`` is neither.
    """
    mode = thinking_mode(tokenizer, thinking)
    template = _template(tokenizer)
    if template is None:
        return _encode_raw(tokenizer, "\n\n".join(message["content"] for message in messages))
    options: dict[str, Any] = {} if mode == "n/a" else {_SWITCH: mode == "on"}
    if _DATE in template:
        options[_DATE] = _FIXED_DATE
    ids = tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False, **options
    )
    return [int(token) for token in ids]


def template_hash(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Sha256 (hex) of the chat template; None where prompts go in raw."""
    template = _template(tokenizer)
    return None if template is None else hashlib.sha256(template.encode()).hexdigest()


def thinking_mode(tokenizer: PreTrainedTokenizerBase, thinking: str) -> str:
    """The mode to record: "on" or "off", or "n/a" where the template has no such switch.

    Raises:
        UserError: ``thinking`` is neither "on" nor "off".
    """
    if thinking not in ("on", "off"):
        raise UserError(f"Thinking is either on or off, not {thinking!r}.")
    return thinking if _SWITCH in (_template(tokenizer) or "") else "n/a"


def _template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    if not tokenizer.chat_template:
        return None
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        raise UserError(
            f"The tokenizer of {tokenizer.name_or_path} has several chat templates and none is "
            f"named default, so none can be chosen."
        ) from error


def _encode_raw(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of plain text; a text that already starts with the BOS text gets no second one."""
    starts = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    return list(tokenizer(text, add_special_tokens=not starts)["input_ids"])
