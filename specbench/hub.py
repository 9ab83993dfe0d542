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
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    reason = outage()
    if reason is None:
        return name
    try:
        cached = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return name  # The loader says what is wrong with the name.
    if not isinstance(cached, str):
        wanted = f" --revision {revision}" if revision else ""
        raise UserError(
            f"The {role} {name!r} is neither a folder nor in the hub cache, and {reason}.",
            f"Run `hf download {name}{wanted}` on a machine that reaches the hub, copy the folder "
            "that it names, and give its path.",
        )
    return name


@cache
def outage() -> str | None:
    """Why the hub cannot be reached, or None where it answers; asked once per process.

    A person's own `HF_HUB_OFFLINE` counts. Where the hub does not answer within `PATIENCE`
    seconds (or those of `PATIENCE_ENV`), the libraries are offline from then on.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    reason = _knock(constants.ENDPOINT)
    if reason is not None:
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
    return reason


def _knock(endpoint: str) -> str | None:
    """Connect to the hub, or to the proxy before it; None where something answers."""
    url = urlsplit(endpoint)
    host = url.hostname or ""
    proxy = None if proxy_bypass(host) else getproxies().get(url.scheme)
    if proxy is not None:
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = url.port or (443 if url.scheme == "https" else 80)
    patience = float(os.environ.get(PATIENCE_ENV) or PATIENCE)
    reasons = [f"{host} does not answer within {patience:g} seconds"]

    async def connect() -> None:
        opening = asyncio.open_connection(url.hostname, port, happy_eyeballs_delay=0.25)
        _, writer = await asyncio.wait_for(opening, patience)
        writer.close()

    def knock() -> None:
        try:
            asyncio.run(connect())
        except TimeoutError:
            return
        except OSError as error:
            reasons[0] = f"{host} cannot be reached ({error.strerror or error})"
            return
        reasons.clear()

    # In a thread of its own, since looking a name up knows no timeout.
    thread = Thread(target=knock, daemon=True)
    thread.start()
    thread.join(patience + 0.1)
    return reasons[0] if reasons else None
