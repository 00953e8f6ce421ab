"""Flow: what the data meets after a range, in a network from which some operators are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from layermerge.tracing.operators import Role
from layermerge.tracing.structure import Operation, Structure


@dataclass(frozen=True)
class Flow:
    """The network's operators; data passes straight through where those that are gone once stood."""

    structure: Structure
    gone: frozenset[str]

    def readers(self, name: str) -> list[str]:
        """Who reads what the node gives."""
        found: list[str] = []
        waiting, seen = [name], set[str]()
        while waiting:
            source = waiting.pop()
            for reader in self.structure.operations[source].readers:
                operation = self.structure.operations[reader]
                passes = reader not in self.gone or operation.role is Role.ADD or operation.source == source
                if passes and reader not in seen:
                    seen.add(reader)
                    (waiting if reader in self.gone else found).append(reader)
        return found

    def behind(self, name: str) -> Iterator[Operation]:
        """The operators from a node to the next conv, barrier or fork.

        Residual adds are passed where a body ends: the add that reads a shortcut belongs to the body next to it.
        """
        while len(readers := self.readers(name)) == 1:
            operation = self.structure.operations[readers[0]]
            if operation.role in (Role.CONV, Role.BARRIER):
                return
            if operation.role is Role.ADD:
                blocks = [block for block in self.structure.blocks if block.add == operation.name]
                if not blocks or name in self.structure.nodes_of(blocks[0].bypass):
                    return
            elif operation.source != name and operation.source not in self.gone:
                return
            yield operation
            name = operation.name

    def needs_activation(self, end: str, activated: Collection[str]) -> str | None:
        """Where an activation belongs after a range that lost one; None where none is needed.

        It is needed where some way from the range's end reaches a conv before any activation, so never at the network's
        output. It goes after the residual add, if that alone reads the range, or what drops a part of it in training.
        `activated` are the nodes that have been given one already.
        """
        readers = self.readers(end)
        while len(readers) == 1 and self.structure.operations[readers[0]].role is Role.DROPOUT:
            readers = self.readers(readers[0])
        adds = len(readers) == 1 and self.structure.operations[readers[0]].role is Role.ADD
        place = readers[0] if adds else end
        return place if self._meets_a_conv(place, activated) else None

    def _meets_a_conv(self, start: str, activated: Collection[str]) -> bool:
        waiting, seen = [start], {start}
        while waiting:
            name = waiting.pop()
            if name in activated:
                continue
            for reader in self.readers(name):
                operation = self.structure.operations[reader]
                if operation.convolves:
                    return True
                if reader not in seen and operation.role is not Role.ACTIVATION:
                    seen.add(reader)
                    waiting.append(reader)
        return False
