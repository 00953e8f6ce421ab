"""YAML that users and strangers write: plain data within bounds.

A few hundred bytes of YAML can stand for gigabytes (an alias repeats what its anchor holds, aliases of aliases multiply) or
for nesting that no recursion survives. Guarantees: what is read is at most a few megabytes; anything else is one line.
"""

from __future__ import annotations

from typing import Any

import yaml

LONGEST = 64 * 1024
"""Characters; the largest recipe that ships has 1,500."""
_MOST_ALIASES = 8
_DEEPEST = 20
_LARGEST = 2**63


class _OutOfBounds(ValueError):
    """YAML that is valid, and more than anybody needs."""


class _BoundedLoader(yaml.SafeLoader):
    """Refuses while the text is read, before anything is built."""

    _aliases = _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._aliases += self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._aliases > _MOST_ALIASES:
            raise _OutOfBounds(f"has more than {_MOST_ALIASES} aliases (*name); write the values out")
        if self._depth > _DEEPEST:
            raise _OutOfBounds(f"is nested more than {_DEEPEST} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _bounded_int(self, node: Any) -> int:
        value: int = self.construct_yaml_int(node)
        if abs(value) >= _LARGEST:
            raise _OutOfBounds("has a number of more than 18 digits")
        return value


_BoundedLoader.add_constructor("tag:yaml.org,2002:int", _BoundedLoader._bounded_int)


def read_yaml(text: str) -> Any:
    """The text as plain data; where it is not valid or out of bounds, a ValueError says what it "is" or "has"."""
    if len(text) > LONGEST:
        raise _OutOfBounds(f"is longer than {LONGEST:,} characters")
    try:
        return yaml.load(text, _BoundedLoader)
    except _OutOfBounds:
        raise
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is a ValueError
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())[:160]}") from error
