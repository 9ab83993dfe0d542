"""Names of models, and a hub that does not answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench import hub, zoo
from specbench.errors import UserError

PROGRAM = """
import sys, time
from specbench import hub
from specbench.errors import UserError
{imports}
start = time.monotonic()
try:
    {action}
except UserError as error:
    print(error)
print(time.monotonic() - start, file=sys.stderr)
"""
MODEL = "hub.locate('nobody/has-this')", "import transformers"
SUITE = "load_suite('gsm8k')", "from specbench.inputs.suite import load_suite; import datasets"


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that answers no attempt to connect: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
        for caller in callers:
            caller.close()


@pytest.fixture
def answering() -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def unasked() -> Iterator[None]:
    """Let the hub be asked anew in every test."""
    hub.outage.cache_clear()
    yield
    hub.outage.cache_clear()


def ask(endpoint: str, monkeypatch: pytest.MonkeyPatch, offline: bool = False) -> str | None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    return hub.outage()


def test_embedded_names_and_folders_need_no_hub(tmp_path: Path) -> None:
    assert hub.locate("tiny-target") == zoo.resolve("tiny-target")
    assert hub.locate(str(tmp_path)) == str(tmp_path)
    assert hub.outage.cache_info().currsize == 0


def test_a_hub_that_answers(answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    assert ask(answering, monkeypatch) is None
    assert not constants.HF_HUB_OFFLINE
    assert hub.locate("some/model") == "some/model"


def test_a_hub_that_refuses(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    reason = ask(refusing, monkeypatch)
    assert reason is not None
    assert reason.startswith("127.0.0.1 cannot be reached (")
    assert constants.HF_HUB_OFFLINE


def test_a_hub_that_does_not_answer_is_not_waited_for(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.monotonic()
    assert ask(silent, monkeypatch) == "127.0.0.1 does not answer within 2 seconds"
    assert time.monotonic() - start < 3
    monkeypatch.setenv(hub.PATIENCE_ENV, "0.2")
    hub.outage.cache_clear()
    assert ask(silent, monkeypatch) == "127.0.0.1 does not answer within 0.2 seconds"


def test_a_person_may_be_offline(answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(answering, monkeypatch, offline=True) == "HF_HUB_OFFLINE is set"


def test_a_proxy_is_asked_in_place_of_the_hub(
    refusing: str, answering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", answering)
    assert ask("http://hub.invalid", monkeypatch) is None
    monkeypatch.setenv("http_proxy", refusing)
    hub.outage.cache_clear()
    assert ask("http://hub.invalid", monkeypatch) is not None


def test_what_is_cached_is_used_without_a_network(
    refusing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    ask(refusing, monkeypatch)
    wanted = "Cannot load the draft 'some/model': it is neither .* nor in the hub cache, and 127.0"
    with pytest.raises(UserError, match=wanted) as caught:
        hub.locate("some/model", "v2", role="draft")
    assert "`hf download some/model --revision v2`" in str(caught.value)
    model = tmp_path / "models--some--model"
    snapshot = model / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "v2").write_text("c0ffee")
    (snapshot / "config.json").write_text("{}")
    assert hub.locate("some/model", "v2") == "some/model"


@pytest.mark.parametrize("what", [MODEL, SUITE], ids=["model", "suite"])
@pytest.mark.parametrize("kind", ["refusing", "silent"])
def test_what_is_missing_is_said_within_three_seconds(
    what: tuple[str, str], kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In a process of its own, with the libraries as they are."""
    action, imports = what
    surroundings = {**os.environ, "HF_ENDPOINT": request.getfixturevalue(kind)}
    surroundings |= {"HF_HOME": str(tmp_path), "NO_PROXY": "*"}
    surroundings.pop("SPECBENCH_DATA", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(action=action, imports=imports)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=surroundings,
    )
    assert "not in the hub cache" in done.stdout.replace("nor in", "not in")
    assert "127.0.0.1" in done.stdout
    assert float(done.stderr.splitlines()[-1]) < 3
