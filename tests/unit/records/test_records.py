"""Records of older schemas can still be read."""

import json
from pathlib import Path

from specbench.records.records import MANIFEST, load_manifest
from tests.helpers.data import ROOT

SCHEMA_1 = ROOT / "tests/golden/report/run"


def test_a_manifest_of_schema_1_gets_the_role_of_every_cell() -> None:
    assert json.loads((SCHEMA_1 / MANIFEST).read_text())["schema"] == 1
    manifest = load_manifest(SCHEMA_1)
    for cell in manifest.cells.values():
        assert cell.role == ("baseline" if cell.drafter == "autoregressive" else "method")


def test_an_oracle_or_self_test_of_schema_1_gets_the_role_control(tmp_path: Path) -> None:
    raw = json.loads((SCHEMA_1 / MANIFEST).read_text())
    key, cell = next((k, c) for k, c in raw["cells"].items() if c["drafter"] != "autoregressive")
    for change in ({"drafter": "self-test"}, {"details": {"rehearsed": True, "rate": 1}}):
        raw["cells"] = {key: cell | change}
        (tmp_path / MANIFEST).write_text(json.dumps(raw))
        loaded = load_manifest(tmp_path).cells[key]
        assert loaded.role == "control"
        assert "rehearsed" not in loaded.details


def test_a_cell_keeps_its_id_without_a_role() -> None:
    """This allows continuing a run that an older version began."""
    assert all(
        cell.id == key for key, cell in load_manifest(ROOT / "results/baseline").cells.items()
    )
