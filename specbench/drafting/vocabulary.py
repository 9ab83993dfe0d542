"""Whether a draft model and its target use the same tokens."""

from collections.abc import Mapping, Set
from itertools import islice
from typing import Any

from transformers import AutoTokenizer, Qwen2Tokenizer

from specbench.core import target as core
from specbench.core.drafter import TargetView
from specbench.errors import UserError


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """Load a draft's tokenizer without remote code; None where it has none.

    Dream's own class is Qwen2's under another name, known only to its remote code, so files that
    `AutoTokenizer` refuses are tried as Qwen2's.
    """
    return core.load_tokenizer(name, revision, (AutoTokenizer, Qwen2Tokenizer))


def require_same_vocabulary(target: TargetView, model: core.Target, role: str = "draft") -> None:
    """Check that ``model`` has exactly the target's tokens; without tokenizers, as many ids.

    Args:
        role: what the model is to the person who named it, for messages.

    Raises:
        UserError: the vocabularies differ, or cannot be compared.
    """
    ours, theirs = target.tokenizer, model.tokenizer
    if ours is None and theirs is None and target.vocab_size == model.vocab_size:
        return
    if ours is None or theirs is None:
        raise no_tokenizer(target, model.name, model.vocab_size, theirs, role)
    if faults := difference(ours.get_vocab(), theirs.get_vocab()):
        raise UserError(
            f"The {role} {model.name!r} has another tokenizer than the target {target.name!r}: "
            f"{faults}. Take a {role} of the target's family."
        )


def difference(
    ours: Mapping[str, int], theirs: Mapping[str, int], ignored: Set[str] = frozenset()
) -> str:
    """Describe how two vocabularies (token to id) differ; empty where they do not.

    Args:
        ours: the target's; ``theirs`` is the draft's.
        ignored: tokens that do not count.
    """
    tokens = (ours.keys() | theirs.keys()) - ignored
    faults = [token for token in tokens if ours.get(token) != theirs.get(token)]
    faults.sort(key=lambda token: (ours.get(token, len(ours)), token))
    if not faults:
        return ""
    first = ", ".join(f"{t!r} (id {ours.get(t)}, {theirs.get(t)})" for t in islice(faults, 3))
    return f"{len(theirs)} tokens against {len(ours)}, first differing (target, draft) {first}"


def no_tokenizer(
    target: TargetView, name: str, ids: int, tokenizer: Any, role: str = "draft"
) -> UserError:
    """Make the error for two models that cannot be compared, since a tokenizer is missing."""
    without = name if tokenizer is None else target.name
    return UserError(
        f"The target {target.name!r} has {target.vocab_size} token ids and the {role} {name!r} has "
        f"{ids}, and {without!r} has no tokenizer to compare them by: put its tokenizer files "
        f"beside its weights, or take a {role} with the target's ids."
    )
