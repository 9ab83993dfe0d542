"""Map token ids between the target's and the drafter's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from drafters.diffusion.model import DiffusionModel
from specbench.api import TargetView, UserError
from specbench.drafting.vocabulary import difference, load_tokenizer, no_tokenizer

MIN_SHARE = 0.5
"""Least share of the target's tokens with a partner for vocabularies to be mapped."""


class Vocabulary:
    """Maps token ids between the target's and the drafter's vocabulary.

    Partners are ids with exactly the same token string. A drafter id without a partner is never
    drafted. A committed token without a partner is spelled with the longest pieces of its string
    that the drafter has. A piece that it cannot spell is left out of the drafter's input, which
    may cost acceptance and never changes the output.

    Args:
        partner: target id to drafter id.
        spelled: the drafter's ids for other target ids. A target id in neither is left out.
        width: of the target's logits.
        drafter_width: of the drafter's logits.
        stop_ids: the drafter's ids that end a text; all of them mean ``stop``.
        stop: the target's own stop id; None where it names none.
        share: share of the target's tokens that have a partner.

    Attributes:
        stop: the target id that stands for the drafter's stop ids; None where it has none.
    """

    def __init__(
        self,
        partner: Mapping[int, int],
        *,
        width: int,
        drafter_width: int,
        device: torch.device,
        spelled: Mapping[int, tuple[int, ...]] | None = None,
        stop_ids: Iterable[int] = (),
        stop: int | None = None,
        share: float = 1.0,
    ) -> None:
        self.width = width
        self.share = share
        self._known = {ours: (theirs,) for ours, theirs in partner.items()} | dict(spelled or {})
        # The last column stands for "no partner": it is -inf.
        index = torch.full((width,), drafter_width)
        back = torch.full((drafter_width,), -1)
        for ours, theirs in partner.items():
            if ours < width and theirs < drafter_width:
                index[ours] = theirs
                back[theirs] = ours
        stops = sorted(i for i in stop_ids if i < drafter_width) if stop is not None else []
        self.stop = stop if stops else None
        if stops and stop is not None:
            own = int(index[stop])
            stops = sorted({*stops, *([own] if own < drafter_width else [])})
            index[torch.isin(index, torch.tensor(stops))] = drafter_width
            back[stops] = stop
        self._stops = torch.tensor(stops, dtype=torch.long, device=device)
        self._index = index.to(device)
        self._unsayable = (back < 0).to(device)

    def capacity(self, positions: int) -> int:
        """Return the drafter positions that ``positions`` target positions may need; spelled tokens
        take more than one."""
        return positions if all(len(ids) == 1 for ids in self._known.values()) else 2 * positions

    def prefix(self, tokens: Iterable[int]) -> list[int]:
        """Map committed target ids to the drafter's input."""
        return [theirs for token in tokens for theirs in self._known.get(token, ())]

    def logits(self, drafted: Tensor) -> Tensor:
        """Map drafter logits ``[..., drafter_width]`` to the target's ids, ``[..., width]``.

        The probabilities of all the drafter's stop ids are added up as the target's stop id.
        """
        padded = torch.nn.functional.pad(drafted, (0, 1), value=-torch.inf)
        out = padded[..., self._index]
        if self.stop is not None:
            out[..., self.stop] = drafted[..., self._stops].logsumexp(-1)
        return out

    def sayable(self, drafted: Tensor) -> Tensor:
        """Set the drafter logits of every id that the target lacks to -inf."""
        return drafted.masked_fill(self._unsayable, -torch.inf)


def match(
    target: TargetView, model: DiffusionModel, revision: str | None, map_vocabulary: bool, who: str
) -> Vocabulary:
    """Find how ``model`` can draft for ``target``.

    Vocabularies count as the same where they differ only in added (special) tokens: diffusion
    models add a mask to the tokenizer they start from. A drafter without tokenizer files is
    assumed to have the target's ids if it has as many (one more may be its mask).

    Args:
        model: the drafter; its name is the folder or hub id it came from.
        map_vocabulary: whether different vocabularies are mapped by exact token strings.
        who: the drafter's name, for messages.

    Raises:
        UserError: the vocabularies differ and are not to be mapped, or share too little.
    """
    stops: dict[str, Any] = {"stop_ids": model.stop_ids, "stop": stop_id(target)}
    sizes: dict[str, Any] = {
        "width": target.vocab_size,
        "drafter_width": model.vocab_size,
        "device": target.device,
    }
    tokenizer = load_tokenizer(model.name, revision)
    if tokenizer is None or target.tokenizer is None:
        rows = model.decoder.config.vocab_size
        if tokenizer is not None or rows not in (target.vocab_size, target.vocab_size + 1):
            raise no_tokenizer(target, model.name, rows, tokenizer)
        return Vocabulary(_same_ids(target.vocab_size, model), **sizes, **stops)
    ours, theirs = target.tokenizer.get_vocab(), tokenizer.get_vocab()
    differing = difference(ours, theirs, _added(target.tokenizer) | _added(tokenizer))
    partner = {i: theirs[token] for token, i in ours.items() if token in theirs}
    partner = {i: j for i, j in partner.items() if j != model.mask_id}
    share = len(partner) / len(ours)
    if differing and not map_vocabulary:
        raise UserError(
            f"The draft {model.name!r} has another tokenizer than the target {target.name!r}: "
            f"{differing}. Take a draft of the target's family, or map the tokens that both have "
            f"({share:.0%} of the target's tokens) with --set {who}.map_vocabulary=true."
        )
    if differing and share < MIN_SHARE:
        raise UserError(
            f"Only {share:.0%} of the tokens of target {target.name!r} are in the vocabulary of "
            f"the draft {model.name!r}, and {who}.map_vocabulary needs {MIN_SHARE:.0%}: take a "
            "draft whose tokenizer is closer to the target's."
        )
    missing = {token: i for token, i in ours.items() if i not in partner}
    spelled = _spellings(missing, {t: i for t, i in theirs.items() if i != model.mask_id})
    return Vocabulary(partner, **sizes, **stops, spelled=spelled, share=share)


def stop_id(target: TargetView) -> int | None:
    """Return the id that ends the target's answers: the tokenizer's, else the config's first, else
    the lowest of its stop ids."""
    for holder in (target.tokenizer, target.config):
        eos = getattr(holder, "eos_token_id", None)
        if eos is not None:
            return int(eos[0] if isinstance(eos, list) else eos)
    return min(target.stop_ids, default=None)


def _same_ids(size: int, model: DiffusionModel) -> dict[int, int]:
    return {i: i for i in range(min(size, model.decoder.config.vocab_size)) if i != model.mask_id}


def _added(tokenizer: Any) -> set[str]:
    return {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}


def _spellings(missing: dict[str, int], theirs: dict[str, int]) -> dict[int, tuple[int, ...]]:
    """Spell each missing token, from the left, in the longest pieces that the drafter has."""
    return {i: tuple(_pieces(token, theirs)) for token, i in missing.items()}


def _pieces(token: str, theirs: dict[str, int]) -> list[int]:
    found = []
    start = 0
    while start < len(token):
        ends = range(len(token), start, -1)
        end = next((end for end in ends if token[start:end] in theirs), None)
        if end is not None:
            found.append(theirs[token[start:end]])
        start = end or start + 1
    return found
