"""The definition of "the same machine", for tables, checks, resumed runs and trends."""

import hashlib
import json
from typing import Any

SOURCE = frozenset({"commit", "dirty"})
"""Facts of an environment that depend on the source code and not on the machine."""


def machine_facts(environment: dict[str, Any]) -> dict[str, Any]:
    """Return all facts about the machine and its software, without the commit."""
    return {name: fact for name, fact in environment.items() if name not in SOURCE}


def machine_id(environment: dict[str, Any]) -> str:
    """Return ten hex digits of a hash of the machine's facts."""
    facts = json.dumps(machine_facts(environment), sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()[:10]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """List ``name: before -> after`` for every fact that differs between two machines."""
    old, new = machine_facts(before), machine_facts(after)
    return [
        f"{name}: {old.get(name)} -> {new.get(name)}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
