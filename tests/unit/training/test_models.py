"""Training on a model: the target, its features and responses, a recipe, the command."""

import json
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from specbench.api import Target
from specbench.cli import train as cli
from specbench.training.embedded.responses import generate, write_responses
from specbench.training.embedded.target import bits_per_byte, prepare, train_target
from specbench.training.features import FrozenTarget
from specbench.training.recipe import Recipe, train_draft
from specbench.training.settings import (
    Job,
    RecipeSettings,
    ResponseSettings,
    TargetShape,
    TrainSettings,
)

SHAPE = TargetShape(hidden=16, layers=3, heads=2, kv_heads=1, head_dim=8, intermediate=24)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "count.jsonl"
    rows = [
        {"instruction": f"Count from {i} to {i + 3}.", "output": f"{i}, {i + 1}, {i + 2}, {i + 3}"}
        for i in range(400)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "small"
    data, tokenizer = prepare([corpus], [], 300, None, 0)
    settings = TrainSettings(steps=60, batch=8, length=48, lr=1e-2)
    result = train_target(
        data, tokenizer, SHAPE, settings, folder, command="specbench train target"
    )
    return folder, result


def test_a_trained_target_is_an_ordinary_folder_with_a_card(trained):
    folder, result = trained
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.config.model_type, model.dtype) == ("qwen3", torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    stops = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert model.generation_config.eos_token_id == stops
    assert "<|im_start|>assistant" in tokenizer.chat_template
    card = json.loads((folder / "card.json").read_text())
    assert card["tokens_seen"] == 60 * 8 * 48
    assert card["validation"] == result.validation
    assert card["data"][0]["file"] == "count.jsonl"
    assert len(card["sha256"]["model.safetensors"]) == 64
    assert result.validation["bits_per_byte"] < 4
    for path in folder.glob("*.*"):
        if path.suffix != ".safetensors":
            assert str(folder) not in path.read_text()


def test_bits_per_byte_of_known_numbers():
    class Document:
        source = 0
        messages = ({"content": "ab"}, {"content": "é"})

    assert bits_per_byte([4 * 0.6931471805599453], [Document()]) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def frozen(trained):
    return FrozenTarget(Target.load(str(trained[0])))


def test_features_are_the_hidden_states_at_the_boundaries(trained, frozen):
    model = AutoModelForCausalLM.from_pretrained(trained[0], dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, frozen.view.vocab_size, (2, 7), generator=generator)
    out = model(tokens, output_hidden_states=True)
    features, last = frozen.forward(tokens, [2, 0, 1])
    assert features.shape == (2, 7, 3, 16)
    for place, boundary in enumerate([2, 0, 1]):
        torch.testing.assert_close(features[:, :, place], out.hidden_states[boundary])
    torch.testing.assert_close(frozen.view.head(last), out.logits, rtol=1e-4, atol=1e-5)
    assert not features.requires_grad


def test_a_batch_of_greedy_answers_equals_generate(trained):
    target = Target.load(str(trained[0]))
    prompts = [
        target.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in ("Count from 1 to 4.", "Count", "Count from 100 to 103, then stop.")
    ]
    settings = ResponseSettings(max_new_tokens=40)
    got = generate(target, prompts, settings, torch.Generator())
    for prompt, answer in zip(prompts, got, strict=True):
        want = target.model.generate(
            torch.tensor([prompt]), max_new_tokens=40, do_sample=False, temperature=None
        )
        assert answer == want[0, len(prompt) :].tolist()


def test_responses_are_resumed_after_a_cut_line(trained, corpus, tmp_path):
    out = tmp_path / "responses.jsonl"
    settings = ResponseSettings(max_new_tokens=8, batch=4, limit=10)
    assert write_responses(str(trained[0]), [corpus], out, settings)[0] == 10
    whole = out.read_text()
    # U+2028 ends a line for str.splitlines and for nobody else.
    other = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a\u2028b"}]
    line = json.dumps({"messages": other}, ensure_ascii=False) + "\n"
    out.write_text(line + whole[: len(whole) // 2])
    assert write_responses(str(trained[0]), [corpus], out, settings)[0] == 11
    assert sorted(out.read_text().split("\n")) == sorted((line + whole).split("\n"))
    chat = json.loads(whole.splitlines()[0])["messages"]
    assert [message["role"] for message in chat] == ["user", "assistant"]


@dataclass(frozen=True)
class Options(RecipeSettings):
    boundary: int = 1
    taps: tuple[int, ...] = (0, 1)
    scale: float | None = None
    bias: bool = False


class Linear(Recipe):
    """Guesses the target's last hidden state from one boundary."""

    Options = Options

    def __init__(self, target, options):
        self.target, self.options = target, options
        self.draft = nn.Linear(target.view.hidden_size, target.view.hidden_size)

    def loss(self, batch, generator):
        features, last = self.target.forward(batch.tokens, [self.options.boundary])
        error = (self.draft(features[:, :, 0]) - last).square().mean(-1)
        return error[batch.response].mean()

    def save(self, folder):
        (folder / "weights.txt").write_text(str(self.draft.weight.sum().item()))


def test_a_recipe_is_trained_by_the_same_loop(trained, corpus, tmp_path):
    settings = TrainSettings(steps=8, batch=4, length=32, lr=1e-2)
    job = Job(str(trained[0]), (corpus,), (), tmp_path / "draft", "specbench train linear")
    one = train_draft(Linear, Options(boundary=2), job, settings)
    again = replace(job, out=tmp_path / "again")
    two = train_draft(Linear, Options(boundary=2), again, settings)
    assert one.validation == two.validation
    assert (tmp_path / "draft" / "weights.txt").is_file()
    card = json.loads((tmp_path / "draft" / "card.json").read_text())
    assert (card["target"], card["options"]["boundary"]) == ("small", 2)


def test_the_command_trains_and_records_itself(corpus, tmp_path, monkeypatch):
    arguments = ["target", "--corpus", corpus, "--out", str(tmp_path / "m"), "--steps", "2"]
    arguments += ["--batch", "2", "--length", "32", "--hidden", "16", "--layers", "1"]
    arguments += ["--heads", "1", "--head-dim", "16", "--vocabulary", "300"]
    monkeypatch.setattr(sys, "argv", ["specbench", "train", *arguments])
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    card = json.loads((tmp_path / "m" / "card.json").read_text())
    assert card["command"].startswith("specbench train target --corpus")
