"""Prompt tokens from conversations, with a small word-level tokenizer."""

import hashlib
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from specbench.errors import UserError
from specbench.inputs.chat import encode, template_hash, thinking_mode

PLAIN = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
SWITCH = (
    PLAIN + "{% if enable_thinking is defined %}{{ 'yes' if enable_thinking else 'no' }}{% endif %}"
)
DATED = PLAIN + "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}"
WORDS = "<s> [user] [assistant] hi there bye yes no 26 Jul 2024 [ ] user assistant"
HI = [{"role": "user", "content": "hi there"}]
TALK = [*HI, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "bye"}]


def tokenizer_with(template: Any) -> PreTrainedTokenizerFast:
    """Adds <s> in front of every plain text, as Llama's does."""
    vocabulary = {word: n for n, word in enumerate(["<unk>", *WORDS.split(), "\n\n"])}
    core = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    core.add_tokens(["[user]", "[assistant]", "\n\n"])
    core.add_special_tokens(["<s>"])
    core.post_processor = processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", unk_token="<unk>", chat_template=template
    )


def words(template: Any, messages: list[dict[str, str]], thinking: str = "off") -> list[str]:
    tokenizer = tokenizer_with(template)
    ids = encode(tokenizer, messages, thinking)
    assert type(ids) is list
    assert {type(token) for token in ids} == {int}
    return list(tokenizer.convert_ids_to_tokens(ids))


def test_the_template_ends_where_the_answer_starts_and_has_one_bos() -> None:
    assert words(PLAIN, HI) == ["<s>", "[user]", "hi", "there", "[assistant]"]


def test_a_second_turn_sees_the_first_and_its_answer() -> None:
    assert words(PLAIN, TALK) == [
        "<s>", "[user]", "hi", "there", "[assistant]", "yes", "[user]", "bye", "[assistant]",
    ]  # fmt: skip


@pytest.mark.parametrize(("thinking", "word"), [("on", "yes"), ("off", "no")])
def test_the_switch_reaches_a_template_that_knows_it(thinking: str, word: str) -> None:
    assert words(SWITCH, HI, thinking)[-1] == word
    assert thinking_mode(tokenizer_with(SWITCH), thinking) == thinking


@pytest.mark.parametrize("template", [PLAIN, None])
def test_without_a_switch_the_mode_is_not_applicable(template: str | None) -> None:
    assert thinking_mode(tokenizer_with(template), "on") == "n/a"
    assert words(template, HI, "on") == words(template, HI, "off")


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(UserError, match="on or off, not 'maybe'"):
        encode(tokenizer_with(SWITCH), HI, "maybe")


def test_the_date_is_fixed() -> None:
    assert words(DATED, HI)[-3:] == ["26", "Jul", "2024"]


def test_without_a_template_the_raw_text_goes_in() -> None:
    assert words(None, HI) == ["<s>", "hi", "there"]
    assert words("", TALK) == ["<s>", "hi", "there", "\n\n", "yes", "\n\n", "bye"]


def test_a_raw_text_that_has_its_bos_gets_no_second() -> None:
    assert words(None, [{"role": "user", "content": "<s>hi"}]) == ["<s>", "hi"]


def test_the_hash_is_that_of_the_template_in_use() -> None:
    expected = hashlib.sha256(PLAIN.encode()).hexdigest()
    assert template_hash(tokenizer_with(PLAIN)) == expected
    assert template_hash(tokenizer_with({"default": PLAIN, "tool_use": SWITCH})) == expected
    assert template_hash(tokenizer_with(None)) is None


def test_several_templates_without_a_default_are_refused() -> None:
    with pytest.raises(UserError, match="several chat templates"):
        template_hash(tokenizer_with({"a": PLAIN, "b": SWITCH}))
