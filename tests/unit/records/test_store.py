"""The folder of a run: kills, second writers, full disks and other commands."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.records.jsonl import to_line
from specbench.records.records import (
    MANIFEST,
    MANIFEST_SCHEMA,
    SAMPLES,
    Cell,
    Manifest,
    ModelId,
    Sample,
    load_manifest,
    load_samples,
)
from specbench.records.store import HELD, Store
from tests.helpers.run_records import LOOKUP

CELL = replace(LOOKUP, options={"tokens": 10}, width=10, sample_ids=("a", "b"))


def manifest(*cells: Cell) -> Manifest:
    return Manifest("run", "specbench run", "now", {c.id: c for c in cells}, {"threads": 1})


def sample(name: str) -> Sample:
    return Sample(CELL.id, name, 1, "ok", output=(1,))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "run", manifest(CELL))) as store:
        yield store


def test_an_appended_sample_is_on_disk_at_once(store: Store) -> None:
    store.append(sample("a"))
    assert (store.folder / SAMPLES).read_text() == to_line(sample("a"))
    store.close()
    with closing(Store(store.folder, manifest(CELL))) as again:
        assert again.done == {sample("a").key: sample("a")}
        assert not again.fresh


def test_held_samples_survive_and_move_to_the_samples(store: Store) -> None:
    store.hold(sample("a"))
    store.hold(sample("b"))
    store.close()
    with closing(Store(store.folder, manifest(CELL))) as again:
        assert set(again.held) == {sample("a").key, sample("b").key}
        again.append(sample("a"))
    # A kill between the two appends: the sample that has moved is no longer held.
    with closing(Store(store.folder, manifest(CELL))) as third:
        assert set(third.held) == {sample("b").key}
        third.append(sample("b"))
        assert (store.folder / HELD).read_bytes() == b""
        assert third.interrupted
        third.finish()
    assert sorted(path.name for path in store.folder.iterdir()) == [MANIFEST, SAMPLES]


@pytest.mark.parametrize("name", [SAMPLES, HELD])
def test_a_torn_last_line_is_cut_off(
    store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    write = store.append if name == SAMPLES else store.hold
    write(sample("a"))
    store.close()
    path = store.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole + to_line(sample("b")).encode()[:25])
    assert list(load_samples(store.folder, name)) == [sample("a")]
    assert [r.message.partition(" ")[0] for r in caplog.records] == [str(path)]
    with closing(Store(store.folder, manifest(CELL))) as again:
        assert path.read_bytes() == whole
        assert [r.message.partition(" ")[0] for r in caplog.records] == [str(path)] * 2
        (again.append if name == SAMPLES else again.hold)(sample("b"))
    assert path.read_text() == to_line(sample("a")) + to_line(sample("b"))


@pytest.mark.parametrize("spoilt", [b"{}\n", b"[1]\n", b"\xff\n", b'{"cell": \n', b"\n"])
def test_a_line_in_the_middle_that_cannot_be_read_is_named(store: Store, spoilt: bytes) -> None:
    store.append(sample("a"))
    store.close()
    path = store.folder / SAMPLES
    path.write_bytes(path.read_bytes() + spoilt + to_line(sample("b")).encode())
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"samples\.jsonl, line 2, cannot be read"):
        Store(store.folder, manifest(CELL))
    assert path.read_bytes() == before


def test_a_sample_of_an_unknown_cell_is_refused(store: Store) -> None:
    store.append(replace(sample("a"), cell="0123456789"))
    store.close()
    with pytest.raises(UserError, match="sample a of cell 0123456789, which its manifest"):
        Store(store.folder, manifest(CELL))


def test_a_newer_schema_asks_for_a_newer_specbench(store: Store) -> None:
    store.close()
    path = store.folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": MANIFEST_SCHEMA + 1}))
    with pytest.raises(
        UserError, match=rf"schema {MANIFEST_SCHEMA + 1}, but this .* use the newer specbench"
    ):
        load_manifest(store.folder)


@contextmanager
def room(folder: Path, more: int) -> Iterator[None]:
    """Simulate a full disk: no file may grow beyond the samples' size plus ``more`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder / SAMPLES).stat().st_size + more
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_loses_nothing_and_says_so(store: Store) -> None:
    store.append(sample("a"))
    with room(store.folder, 40), pytest.raises(UserError, match=r"run cannot be written \(File"):
        store.append(sample("b"))
    assert (store.folder / SAMPLES).read_text() == to_line(sample("a"))
    assert list(store.done) == [sample("a").key]
    store.append(sample("b"))
    assert (store.folder / SAMPLES).read_text() == to_line(sample("a")) + to_line(sample("b"))


def test_a_full_disk_while_dropping_samples_keeps_them_all(store: Store) -> None:
    for name in "ab":
        store.append(sample(name))
    before = (store.folder / SAMPLES).read_bytes()
    with room(store.folder, -len(before) // 2 - 10), pytest.raises(UserError, match="cannot be wr"):
        store.forget({sample("a").key})
    assert (store.folder / SAMPLES).read_bytes() == before


def test_a_full_disk_at_the_beginning(tmp_path: Path) -> None:
    (tmp_path / SAMPLES).touch()
    with room(tmp_path, 100), pytest.raises(UserError, match="cannot be written"):
        Store(tmp_path / "run", manifest(CELL))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [SAMPLES]
    Store(tmp_path / "run", manifest(CELL)).close()


def test_dropped_samples_are_gone_and_the_lock_stays(store: Store) -> None:
    for name in "ab":
        store.append(sample(name))
    store.forget({sample("a").key})
    assert list(load_samples(store.folder)) == [sample("b")] == list(store.done.values())
    with pytest.raises(UserError, match="Another process is writing"):
        Store(store.folder, manifest(CELL))
    store.append(sample("a"))
    assert list(load_samples(store.folder)) == [sample("b"), sample("a")]
    assert sorted(path.name for path in store.folder.iterdir()) == [MANIFEST, SAMPLES]


def test_a_second_writer_is_refused(store: Store) -> None:
    with pytest.raises(UserError, match="Another process is writing"):
        Store(store.folder, manifest(CELL))
    store.close()
    Store(store.folder, manifest(CELL)).close()


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ((replace(CELL, width=5),), "width of prompt-lookup on smoke: 10 stored, 5 requested"),
        ((CELL, replace(CELL, suite="other")), "prompt-lookup on other is only requested"),
        ((replace(CELL, sample_ids=("a",)),), "sample_ids of prompt-lookup on smoke: a, b stored"),
    ],
)
def test_another_run_is_refused(store: Store, cells: tuple[Cell, ...], message: str) -> None:
    store.append(sample("a"))
    store.close()
    before = {path.name: path.read_bytes() for path in store.folder.iterdir()}
    with pytest.raises(UserError, match=message):
        Store(store.folder, manifest(*cells))
    assert {path.name: path.read_bytes() for path in store.folder.iterdir()} == before


def test_the_manifest_is_never_rewritten(store: Store) -> None:
    store.close()
    later = replace(manifest(CELL), created="later", environment={"threads": 2})
    with closing(Store(store.folder, later)) as again:
        assert again.manifest.created == "now"


UNBOUND = replace(CELL, width=0, rule="unbound", draft_model=ModelId("d"))
BOUND = replace(CELL, draft_model=ModelId("d", revision="0123"), details={"depth": 3})
OTHER = replace(CELL, drafter="other")


@pytest.fixture
def unbound(tmp_path: Path) -> Store:
    """Make a closed run with one drafter that could not be bound and one that answered."""
    with closing(Store(tmp_path / "run", manifest(UNBOUND, OTHER))) as store:
        store.append(Sample(UNBOUND.id, "a", 1, "error", error="MemoryError: 40 GB"))
        store.append(Sample(OTHER.id, "a", 1, "ok", output=(1,)))
    return store


def test_a_run_stays_the_same_when_a_drafter_can_be_bound_later(unbound: Store) -> None:
    asked = manifest(BOUND, OTHER)
    with closing(Store(unbound.folder, asked)) as again:
        assert again.cell(BOUND) == UNBOUND
        assert again.manifest == unbound.manifest
        again.adopt(asked)
        assert again.cell(BOUND) == BOUND
        assert list(again.done) == [(OTHER.id, "a", 1)]
    assert list(load_manifest(unbound.folder).cells) == [BOUND.id, OTHER.id]
    with closing(Store(unbound.folder, manifest(UNBOUND, OTHER))) as third:
        third.adopt(manifest(UNBOUND, OTHER))
        assert third.cell(UNBOUND) == BOUND, "the bound cell is kept"
    with pytest.raises(UserError, match="width of prompt-lookup on smoke: 10 stored, 4 req"):
        Store(unbound.folder, manifest(replace(BOUND, width=4), OTHER))


def test_a_run_continues_after_a_kill_while_adopting(
    unbound: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    asked = manifest(BOUND, OTHER)
    with closing(Store(unbound.folder, asked)) as again, monkeypatch.context() as patch:
        patch.setattr("specbench.records.store._write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            again.adopt(asked)
    with closing(Store(unbound.folder, asked)) as third:
        third.adopt(asked)
        assert third.cell(BOUND) == BOUND
        assert list(third.done) == [(OTHER.id, "a", 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {"tokens": 4}}, "options of prompt-lookup on smoke"),
        ({"draft_model": ModelId("other")}, "draft_model of prompt-lookup on smoke"),
        ({"seed": 1}, "seed of prompt-lookup on smoke: 0 stored, 1 requested"),
    ],
)
def test_other_settings_of_an_unbound_drafter_are_another_run(
    unbound: Store, change: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Store(unbound.folder, manifest(replace(BOUND, **change), OTHER))  # type: ignore[arg-type]


def test_a_manifest_with_other_ids_is_another_run(store: Store) -> None:
    store.close()
    path = store.folder / MANIFEST
    path.write_text(path.read_text().replace(CELL.id, "0123456789"))
    with pytest.raises(UserError, match=r"holds another run \(its cells have other ids\)"):
        Store(store.folder, manifest(CELL))


def test_a_run_is_interrupted_from_its_beginning_to_its_end(store: Store) -> None:
    assert not store.interrupted
    store.begin(manifest(CELL))
    store.close()
    with closing(Store(store.folder, manifest(CELL))) as again:
        assert again.interrupted
        again.finish()
    with closing(Store(store.folder, manifest(CELL))) as third:
        assert not third.interrupted
        elsewhere = replace(manifest(CELL), environment={"threads": 2})
        with pytest.raises(UserError, match=r"began in another environment \(threads: 1 -> 2\)"):
            third.begin(elsewhere)
    assert sorted(path.name for path in store.folder.iterdir()) == [MANIFEST, SAMPLES]


def test_samples_without_a_manifest_are_refused(store: Store) -> None:
    store.append(sample("a"))
    store.close()
    (store.folder / MANIFEST).unlink()
    with pytest.raises(UserError, match="but no manifest"):
        Store(store.folder, manifest(CELL))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"file.* cannot be created or written \(.*--out"):
            Store(folder, manifest(CELL))
