"""Suites: cards, sources, hashes, subsets and a user's own prompts, all on in-test data."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench import hub
from specbench.errors import UserError
from specbench.inputs import suite as module
from specbench.inputs.cards import DATA_ENV, Card, Fields, Hub, list_suites
from specbench.inputs.suite import Prompt, Suite, fingerprint, load_suite, subset

ROWS = [{"question": "How many?", "answer": "2"}, {"question": "How\nfar?", "answer": "3"}]
BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
CARD = Card(
    name="tiny",
    description="two questions",
    licence="MIT",
    source="here",
    citation="none",
    template="{prompt}" + BOXED,
    max_new_tokens=7,
    rows=2,
    sha256=fingerprint(
        Prompt(f"tiny-{n}", (row["question"] + BOXED,), None) for n, row in enumerate(ROWS)
    ),
    fields=Fields(turns=("question", "prompt"), prefix="tiny-", first=0),
    files=("tiny.jsonl.gz", "tiny.jsonl"),
    hub=Hub("someone/tiny", "test", "main", "a" * 40),
)


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_ENV, raising=False)


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> Callable[[Card], None]:
    """Puts one card in the place of the shipped ones."""
    return lambda card: monkeypatch.setattr(module, "list_suites", lambda: [card])


def write(path: Path, rows: list[Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def hub_gives(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> list[Any]:
    """Nothing in the cache; the hub answers ``rows`` (an empty list: it is not reached)."""
    import datasets
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    calls: list[Any] = []

    def snapshot_download(*args: Any, **options: Any) -> str:
        raise LocalEntryNotFoundError("not cached")

    def load_dataset(*args: Any, **options: Any) -> list[dict[str, Any]]:
        calls.append((args, options))
        if not rows:
            raise ConnectionError("no route\nto the hub")
        return rows

    monkeypatch.setattr(hub, "outage", lambda: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


# Sources


@pytest.mark.parametrize("name", CARD.files)
def test_a_local_file_plain_or_gzip(
    name: str, tmp_path: Path, shipped: Callable[[Card], None]
) -> None:
    shipped(CARD)
    write(tmp_path / name, ROWS)
    suite = load_suite("tiny", tmp_path)
    assert suite.prompts[1] == Prompt("tiny-1", ("How\nfar?" + BOXED,), None)
    assert (suite.sha256, suite.max_new_tokens) == (CARD.sha256, 7)


def test_the_environment_names_the_folder_and_data_dir_comes_first(
    tmp_path: Path, shipped: Callable[[Card], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(CARD)
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder, rows in ((good, ROWS), (bad, ROWS[:1])):
        folder.mkdir()
        write(folder / "tiny.jsonl", rows)
    monkeypatch.setenv(DATA_ENV, str(good))
    assert len(load_suite("tiny").prompts) == 2
    with pytest.raises(UserError, match="has 1"):
        load_suite("tiny", bad)


def test_hub_rows_with_the_hub_s_field_names_give_the_same_suite(
    shipped: Callable[[Card], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(CARD)
    rows = [{"prompt": row["question"], "prompt_id": 7, "reference": []} for row in ROWS]
    calls = hub_gives(monkeypatch, rows)
    assert load_suite("tiny").sha256 == CARD.sha256
    assert calls == [(("someone/tiny", "main"), {"split": "test", "revision": "a" * 40})]


def test_the_hub_cache_is_read_without_a_network(
    tmp_path: Path, shipped: Callable[[Card], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import huggingface_hub.constants

    snapshot = tmp_path / "hub" / "datasets--someone--tiny" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    datasets.Dataset.from_list(ROWS).to_parquet(snapshot / "test-00000-of-00001.parquet")
    (snapshot / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n"
        "  - split: test\n    path: test-*\n  - split: train\n    path: test-*\n---\n"
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    shipped(CARD)
    assert load_suite("tiny").sha256 == CARD.sha256


def test_missing_data_says_how_to_get_it(
    tmp_path: Path, shipped: Callable[[Card], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(CARD)
    hub_gives(monkeypatch, [])
    with pytest.raises(UserError) as caught:
        load_suite("tiny", tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    for part in (
        "tiny.jsonl is not in",
        "ConnectionError: no route",
        DATA_ENV,
        f"hf download someone/tiny --repo-type dataset --revision {'a' * 40}",
    ):
        assert part in text


def test_a_hub_that_does_not_answer_is_the_reason(
    shipped: Callable[[Card], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(CARD)
    hub_gives(monkeypatch, [])
    monkeypatch.setattr(hub, "outage", lambda: "the hub is asleep")
    with pytest.raises(UserError, match="not in the hub cache, and the hub is asleep"):
        load_suite("tiny")


def test_a_data_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere .* does not exist"):
        load_suite("gsm8k", tmp_path / "nowhere")


# Rows that are not the card's


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:1], "has 2 rows, .*tiny.jsonl has 1;"),
        ([ROWS[0], {"question": "How wide?"}], f"sha256 is .* the card says {CARD.sha256}"),
        (ROWS[::-1], "sha256 is"),
        ([ROWS[0], {"problem": "?"}], "row 2, has none of the fields question, prompt; .* problem"),
        ([ROWS[0], {"question": " \n"}], "row 2, field 'question', has an empty prompt"),
        ([ROWS[0], {"question": []}], "row 2, field 'question', has an empty prompt"),
        ([ROWS[0], {"question": ["a", 1]}], "row 2, field 'question', must be a text or a list"),
        ([ROWS[0], "How far?"], "line 2, is not a JSON object"),
    ],
)
def test_wrong_rows_are_refused(
    rows: list[Any], message: str, tmp_path: Path, shipped: Callable[[Card], None]
) -> None:
    shipped(CARD)
    write(tmp_path / "tiny.jsonl", rows)
    with pytest.raises(UserError, match=message):
        load_suite("tiny", tmp_path)


def test_a_row_without_the_card_s_id_is_refused(
    tmp_path: Path, shipped: Callable[[Card], None]
) -> None:
    shipped(replace(CARD, fields=Fields(turns=("question",), id="uid")))
    write(tmp_path / "tiny.jsonl", ROWS)
    with pytest.raises(UserError, match="row 1, has no field 'uid'; it has question, answer"):
        load_suite("tiny", tmp_path)


def test_the_hash_covers_ids_turns_and_template_but_not_categories() -> None:
    prompt = Prompt("a", ("one", "two"), None)
    same = fingerprint([replace(prompt, category="math")])
    assert same == fingerprint([prompt])
    for other in (
        replace(prompt, id="b"),
        replace(prompt, turns=("onetwo",)),
        replace(prompt, turns=("one", "two ")),
    ):
        assert fingerprint([other]) != same


def test_the_hash_is_a_fixed_function() -> None:
    prompts = [Prompt("é", ("x\n", "\u2028"), None)]
    assert fingerprint(prompts) == (
        "587a01463177463f39463b14c7488754fccc4fa6412065292f76674c43acc85f"
    )


# Names


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(UserError, match=r"no suite 'math500'.*\. Did you mean math-500\?"):
        load_suite("math500")
    with pytest.raises(UserError, match=r"no suite 'zzz'.*\. There are: gsm8k, humaneval"):
        load_suite("zzz")


def test_listing_and_loading_leaves_torch_out() -> None:
    code = (
        "import sys; from specbench.inputs.suite import list_suites, load_suite;"
        "list_suites(); load_suite('smoke');"
        "sys.exit(bool({'torch', 'transformers', 'datasets', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Subsets

ids = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=40, unique=True)


def suite_of(names: list[str]) -> Suite:
    prompts = tuple(Prompt(name, ("?",), None) for name in names)
    return Suite("s", prompts, fingerprint(prompts), 8)


@given(ids, st.integers(1, 50), st.integers(1, 50), st.randoms(use_true_random=False))
def test_a_smaller_subset_is_a_prefix_whatever_the_row_order(
    names: list[str], one: int, other: int, shuffler: Any
) -> None:
    suite = suite_of(names)
    small, large = sorted((one, other))
    chosen = subset(suite, large).prompts
    assert len(chosen) == min(large, len(names))
    assert subset(suite, small).prompts == chosen[:small]
    whole = subset(suite, None).prompts
    assert whole[:large] == chosen
    assert sorted(p.id for p in whole) == sorted(names)
    shuffler.shuffle(names)
    assert subset(suite_of(names), large).prompts == chosen


def test_the_permutation_never_changes() -> None:
    suite = suite_of([str(n) for n in range(10)])
    assert [p.id for p in subset(suite, 5).prompts] == ["9", "8", "1", "4", "7"]
    assert subset(suite, 5).sha256 == suite.sha256


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(UserError, match=f"at least 1, not {limit}"):
        subset(suite_of(["a"]), limit)


# A user's own suite


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.json", "mine.jsonl.gz"])
def test_own_prompts_by_path(name: str, tmp_path: Path) -> None:
    rows: list[Any] = [
        {"turns": ["Hello.", "And now?"], "id": 7, "category": "chat"},
        {"prompt": "a\u2028b"},
        {"question": "c", "answer": "d"},
        {"text": "Keep {prompt} as it is."},
    ]
    path = tmp_path / name
    if name.endswith(".json"):
        path.write_text(json.dumps(rows, indent=1))
    else:
        write(path, rows)
    suite = load_suite(str(path))
    assert suite.prompts == (
        Prompt("7", ("Hello.", "And now?"), "chat"),
        Prompt("mine-1", ("a\u2028b",), None),
        Prompt("mine-2", ("c",), None),
        Prompt("mine-3", ("Keep {prompt} as it is.",), None),
    )
    assert suite.name == name
    assert suite.max_new_tokens == 2048
    assert suite.sha256 == fingerprint(suite.prompts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n\n{"prompt": \n', r"own.jsonl, line 3, is not valid JSON: Expecting"),
        ('[{"prompt": "a"}, 3]', "row 2, is not a JSON object"),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "more than once: 'x'"),
        ('{"prompt": "a", "id": 1.5}', "row 1, field 'id', must be a text or a whole number"),
        ("\n \n", "holds no prompts"),
        ("[]", "holds no prompts"),
    ],
)
def test_a_bad_own_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_suite(str(path))


@pytest.mark.parametrize(
    "data", [b"\xff\xfe{", gzip.compress(b"{}" * 50, mtime=0)[:20], b"\x1f\x8b\x00"]
)
def test_bytes_that_are_no_text_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(data)
    with pytest.raises(UserError, match="not UTF-8 text or a whole gzip"):
        load_suite(str(path))


def test_a_missing_own_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file .*gone\.jsonl"):
        load_suite(str(tmp_path / "gone.jsonl"))


def test_the_shipped_cards_read_back() -> None:
    names = [entry.name for entry in files("suites").iterdir() if entry.name.endswith(".toml")]
    assert [f"{card.name}.toml" for card in list_suites()] == sorted(names)
