"""The EAGLE-3 head that training starts with: fresh or an earlier one, and its vocabulary."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drafters.eagle.base import check_fit
from drafters.eagle.checkpoint import load_model
from drafters.eagle.config import EagleConfig
from drafters.eagle.model import Eagle3Model
from drafters.eagle.settings import Eagle3Settings
from specbench.api import TargetView, UserError
from specbench.drafting.checkpoints import find_checkpoint
from specbench.training.corpus.tokenizer import Encoded
from specbench.training.features import draw_matrices, sizes_like


def draft_ids(draft: Eagle3Model) -> Tensor:
    """The target ids ``[Vd]`` of a draft's ids."""
    ids = torch.arange(draft.config.draft_vocab_size, device=draft.norm.weight.device)
    return ids if draft.d2t is None else draft.d2t + ids


def frequent_ids(documents: Sequence[Encoded], size: int, vocabulary: int) -> Tensor:
    """The ``size`` ids used most in responses, increasing; lower ids win ties."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for document in documents:
        counts += np.bincount(document.tokens[document.response], minlength=vocabulary)
    return torch.from_numpy(np.sort(np.argsort(-counts, stable=True)[:size]))


def fresh_draft(view: TargetView, options: Eagle3Settings, ids: Tensor | None) -> Eagle3Model:
    """Make a fresh draft with the target's own head, for its ids ``[Vd]`` or all."""
    draft = Eagle3Model(shape_for(view, options, view.vocab_size if ids is None else len(ids)))
    draw_matrices(draft)
    ids = draft_ids(draft) if ids is None else ids
    choose_vocabulary(draft, ids, view.head.weight[ids])  # type: ignore[index]
    return draft.to(view.device, torch.float32)


def known_draft(view: TargetView, name: str, ids: Tensor | None) -> Eagle3Model:
    """Load the draft ``name``, and give it the draft ids ``[Vd]`` or leave its own.

    Raises:
        UserError: as `load_draft`.
    """
    draft = load_draft(view, name)
    if ids is not None:
        had = draft_ids(draft)
        rows: Tensor = view.head.weight.detach().clone()  # type: ignore[operator]
        rows[had] = draft.get_parameter("lm_head.weight").to(rows)
        choose_vocabulary(draft, ids, rows[ids])
    return draft.train().requires_grad_(True)


def load_draft(view: TargetView, name: str) -> Eagle3Model:
    """Load a draft that can be trained on, float32.

    Raises:
        UserError: it is not an EAGLE-3 draft for this target, or not of the kind made here.
    """
    draft = load_model(find_checkpoint(name, None, fallback="*.bin"), view.device, torch.float32)
    config = draft.config
    check_fit(config, view, "the recipe eagle3", name, 3)
    if config.own_embedding or not config.own_head or config.layers > 1:
        raise UserError(
            f"The draft {name!r} cannot be trained on: the recipe knows drafts of one layer that "
            "borrow the target's embedding and have a head of their own."
        )
    assert isinstance(draft, Eagle3Model)
    return draft


@torch.no_grad()
def choose_vocabulary(draft: Eagle3Model, ids: Tensor, head: Tensor) -> None:
    """Make ``ids`` ``[Vd]``, increasing, a draft's target ids; ``head`` ``[Vd, H]`` is its head."""
    draft.get_parameter("lm_head.weight").copy_(head)
    if draft.d2t is not None and draft.t2d is not None:
        draft.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        draft.t2d.zero_()[ids] = True


def shape_for(view: TargetView, options: Eagle3Settings, draft_vocab_size: int) -> EagleConfig:
    """Configure a fresh head for a target.

    Raises:
        UserError: the target has too few layers for three distinct taps.
    """
    config = EagleConfig(
        **sizes_like(view, options),
        version=3,
        target_hidden=view.hidden_size,
        draft_vocab_size=draft_vocab_size,
        rope={"rope_type": "default", "rope_theta": options.rope_theta},
    )
    config.boundaries(view.num_layers)
    return config
