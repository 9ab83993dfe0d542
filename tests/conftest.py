"""Flags and markers of the test suite."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)  # The models are tiny: threads would only wait for one another.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run tests of a minute and more")
    parser.addoption("--run-network", action="store_true", help="run tests that need the hub")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {
        "slow": None if config.getoption("--run-slow") else "give --run-slow to run it",
        "network": None if config.getoption("--run-network") else "give --run-network to run it",
        "gpu": None if torch.cuda.is_available() else "needs a CUDA device",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
