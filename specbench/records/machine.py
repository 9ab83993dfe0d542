"""What "the same machine" means: one definition for tables, checks, resumed runs and trends."""

import hashlib
import json
from typing import Any

SOURCE = frozenset({"commit", "dirty"})
"""Facts of an environment that change with the source code and not with the machine."""


def machine_facts(environment: dict[str, Any]) -> dict[str, Any]:
    """Everything recorded of the machine and its software, the commit excepted."""
    return {name: fact for name, fact in environment.items() if name not in SOURCE}


def machine_id(environment: dict[str, Any]) -> str:
    """Ten hex digits over the facts of the machine; equal for the same machine."""
    facts = json.dumps(machine_facts(environment), sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:10]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """``name: before -> after`` for every fact in which two machines differ; [] for the same."""
    old, new = machine_facts(before), machine_facts(after)
    return [
        f"{name}: {old.get(name)} -> {new.get(name)}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
