"""Names of models: embedded, a folder, or a hub id; a hub that does not answer is not waited for.

Without a network the libraries try every request again and again, for about half a minute a
model. So the hub is asked once per process whether it answers. Where it does not, the libraries
are told to be offline: what is in the local cache is used, and what is not is missing at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import cache
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from specbench.errors import UserError
from specbench.zoo import resolve

PATIENCE_ENV = "HF_HUB_ETAG_TIMEOUT"
"""Environment variable of the hub's own library: seconds to wait for the hub's first answer."""

PATIENCE = 2.0


def is_local(name: str) -> bool:
    """Whether ``name`` is an embedded model or a folder, and so no hub id."""
    return Path(resolve(name)).is_dir()


def locate(name: str, revision: str | None = None, role: str = "model") -> str:
    """What to load a model from: the folder of an embedded one, else ``name`` as it is.

    Args:
        role: what the model is to the person who named it, for messages.

    Raises:
        UserError: a hub id that is not in the local cache while the hub cannot be reached.
    """
    if is_local(name):
        return resolve(name)
    reason = outage()
    if reason is not None and cached(name, revision) is None:
        wanted = f" --revision {revision}" if revision else ""
        raise UserError(
            f"Cannot load the {role} {name!r}: it is neither a folder nor in the hub cache, and "
            f"{reason}.",
            f"Run `hf download {name}{wanted}` on a machine that reaches the hub, copy the folder "
            "that it names, and give its path.",
        )
    return name


def cached(name: str, revision: str | None = None, kind: str = "model") -> str | None:
    """The folder of a hub id in the hub's local cache, or None where it is not there.

    Args:
        kind: "model" or "dataset".
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True)
    except (HFValidationError, LocalEntryNotFoundError):
        return None


@cache
def outage() -> str | None:
    """Why the hub cannot be reached, or None where it answers.

    `HF_HUB_OFFLINE` counts. Where the hub does not answer within `PATIENCE` seconds (or those of
    `PATIENCE_ENV`), the libraries are offline from then on.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    reason = knock(constants.ENDPOINT)
    if reason is not None:
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
    return reason


def knock(endpoint: str) -> str | None:
    """Connect to the hub, or to the proxy before it; None where something answers."""
    url = urlsplit(endpoint)
    host = url.hostname or ""
    proxy = None if proxy_bypass(host) else getproxies().get(url.scheme)
    if proxy is not None:
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = url.port or (443 if url.scheme == "https" else 80)
    patience = float(os.environ.get(PATIENCE_ENV) or PATIENCE)
    found: list[str | None] = []

    async def connect() -> None:
        _, writer = await asyncio.open_connection(url.hostname, port, happy_eyeballs_delay=0.25)
        writer.close()

    def attempt() -> None:
        try:
            asyncio.run(connect())
            found.append(None)
        except OSError as error:
            found.append(f"{host} cannot be reached ({error.strerror or error})")

    # In a thread that is not waited for, since looking a name up knows no timeout.
    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(patience)
    return found[0] if found else f"{host} does not answer within {patience:g} seconds"
