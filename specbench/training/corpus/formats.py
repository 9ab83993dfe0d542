"""Public data files as chats: one small adapter per set of field names of a row."""

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specbench.errors import UserError

Row = dict[str, Any]
Chat = list[dict[str, str]]
Adapter = Callable[[Row], list[Chat]]

BOXED_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
FUNCTION_INSTRUCTION = (
    "Complete the following Python function so that it passes its tests. "
    "Answer with the whole function in one Python code block."
)
PLAIN_ROLE = "text"
"""Role of the only message of a document that is not a chat."""

OASST_PATHS = 3
"""Paths taken from one message tree: those that begin with the best-ranked replies."""


def read_chats(path: Path) -> Iterator[Chat]:
    """Read all chats of a file.

    Raises:
        UserError: there is no such file, or names the row that is not JSON or has no known fields.
    """
    for number, row in enumerate(read_rows(path), start=1):
        chats = chats_of(row) if isinstance(row, dict) else None
        if chats is None:
            known = "; ".join(names.replace(" ", "+") for names in ADAPTERS)
            raise UserError(
                f"Row {number} of {path} has no known fields.", f"Known sets of fields: {known}."
            )
        yield from chats


def read_rows(path: Path) -> Iterator[Any]:
    """Read the rows of a JSON array or a JSONL file, gzipped or not.

    Raises:
        UserError: there is no such file, or names the line that is not JSON.
    """
    if not path.is_file():
        raise UserError(f"There is no data file {path}.")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        if path.name.removesuffix(".gz").endswith(".json"):
            yield from json.load(stream)
            return
        for number, line in enumerate(stream, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise UserError(f"Line {number} of {path} is not JSON: {error}.") from None


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def chats_of(row: Row) -> list[Chat] | None:
    """The chats in a row; None if no adapter knows its fields."""
    for names, adapter in ADAPTERS.items():
        if row.keys() >= set(names.split()):
            return [chat for chat in adapter(row) if all(m["content"].strip() for m in chat)]
    return None


def _pair(user: str, assistant: str) -> Chat:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def _fence(code: str) -> str:
    body = code.strip("\n")
    return f"```python\n{body}\n```"


def _turns(field: str) -> Adapter:
    return lambda row: [[{"role": m["role"], "content": m["content"]} for m in row[field]]]


def _question(row: Row) -> list[Chat]:
    """GSM8K: drop the calculator's annotations, box the final answer."""
    steps, _, final = re.sub(r"<<.*?>>", "", row["answer"]).rpartition("####")
    answer = f"{steps.strip()}\nThe answer is \\boxed{{{final.strip()}}}." if steps else final
    return [_pair(f"{row['question'].strip()}\n{BOXED_INSTRUCTION}", answer)]


def _problem(row: Row) -> list[Chat]:
    return [_pair(f"{row['problem'].strip()}\n{BOXED_INSTRUCTION}", row["solution"].strip())]


def _task_code(row: Row) -> list[Chat]:
    """MBPP: its code has CRLF line ends and tabs."""
    lines = row["code"].replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return [_pair(row["text"].strip(), _fence("\n".join(line.rstrip() for line in lines)))]


def _function(row: Row) -> list[Chat]:
    """A signature with docstring and its body, in the form of the HumanEval prompts."""
    prompt = row["prompt"].strip("\n")
    whole = prompt + "\n" + row["completion"].strip("\n")
    return [_pair(f"{FUNCTION_INSTRUCTION}\n\n{_fence(prompt)}", _fence(whole))]


def _instruct(instruction: str, context: str | None, answer: str) -> Chat:
    user = instruction.strip()
    if context and context.strip():
        user = f"{user}\n\n{context.strip()}"
    return _pair(user, answer.strip())


def _instances(row: Row) -> list[Chat]:
    return [
        _instruct(row["instruction"], instance.get("input"), instance["output"])
        for instance in row["instances"]
    ]


def _instruction(answer: str) -> Adapter:
    return lambda row: [_instruct(row["instruction"], row.get("input"), row[answer])]


def _conversations(row: Row) -> list[Chat]:
    roles = {"human": "user", "gpt": "assistant", "system": "system"}
    turns = row["conversations"]
    return [[{"role": roles.get(t["from"], t["from"]), "content": t["value"]} for t in turns]]


def _tree(row: Row) -> list[Chat]:
    """Open Assistant: follow the best-ranked replies, and end with an assistant."""
    root, chats = row["prompt"], []
    for reply in _ranked(root)[:OASST_PATHS]:
        path, node = [root, reply], reply
        while children := _ranked(node):
            node = children[0]
            path.append(node)
        if path[-1]["role"] == "prompter":
            path.pop()
        turns = [("user" if m["role"] == "prompter" else "assistant", m["text"]) for m in path]
        chats.append([{"role": role, "content": text} for role, text in turns])
    return chats


def _ranked(node: Row) -> list[Row]:
    """Replies of a message, best first; unranked ones last."""
    return sorted(
        node.get("replies") or [], key=lambda m: (m.get("rank") is None, m.get("rank") or 0)
    )


def _text(row: Row) -> list[Chat]:
    return [[{"role": PLAIN_ROLE, "content": row["text"]}]]


ADAPTERS: dict[str, Adapter] = {
    "messages": _turns("messages"),
    "question answer": _question,
    "problem solution": _problem,
    "text code": _task_code,
    "prompt completion": _function,
    "message_tree_id prompt": _tree,
    "instruction instances": _instances,
    "instruction response": _instruction("response"),
    "instruction output": _instruction("output"),
    "conversations": _conversations,
    "turns": _turns("turns"),
    "text": _text,
}
"""Field names that must all be present, and the function that reads such a row; first fit wins."""
