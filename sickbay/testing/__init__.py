"""A fleet in memory: every port implemented without an outside, for tests of what uses them.

`MemoryFleet` is the outside: nodes with parts, marks, jobs, boots and defects. The other classes
are ports onto it. Each call is logged in order (`fleet.log`), each answer can be scripted
(`fleet.script`), and what no real machine allows (an act on a node that is not drained, the same
operation twice) raises `PhysicsBroken` and stays on record in `fleet.broken`.

```python
fleet = MemoryFleet(some_nodes(4), now=lambda: datetime.now(UTC))
fleet.break_part("n001", "gpu0", cured_by={Treatment.RESET})
scheduler = MemoryScheduler(fleet)
await scheduler.close_gate("n001", mark="sickbay:r1", reason="xid_79")
assert fleet.log.verbs() == ["scheduler.close_gate"]
```

`sickbay.testing.conformance` holds the rules an adapter of ours or of anybody must keep.
"""

from sickbay.testing.bmc import MemoryBmc
from sickbay.testing.calls import Call, CallLog, PhysicsBroken
from sickbay.testing.evidence import MemoryEvidence
from sickbay.testing.fleet import Defect, MemoryFleet, MemoryNode, some_nodes
from sickbay.testing.ledger import MemoryLeases, MemoryOperations, MemoryRollouts
from sickbay.testing.machine import MemoryCheckRunner, MemoryJournal, MemoryNodeControl
from sickbay.testing.messages import MemoryPermits, MemoryRepairs
from sickbay.testing.people import MemoryPager, MemoryTicket, MemoryTickets
from sickbay.testing.records import MemoryRecords
from sickbay.testing.safety import MemorySafety, WouldHave
from sickbay.testing.scheduler import MemoryScheduler

__all__ = [
    "Call",
    "CallLog",
    "Defect",
    "MemoryBmc",
    "MemoryCheckRunner",
    "MemoryEvidence",
    "MemoryFleet",
    "MemoryJournal",
    "MemoryLeases",
    "MemoryNode",
    "MemoryNodeControl",
    "MemoryOperations",
    "MemoryPager",
    "MemoryPermits",
    "MemoryRecords",
    "MemoryRepairs",
    "MemoryRollouts",
    "MemorySafety",
    "MemoryScheduler",
    "MemoryTicket",
    "MemoryTickets",
    "PhysicsBroken",
    "WouldHave",
    "some_nodes",
]
