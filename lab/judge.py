"""The judge of "nothing foreign was touched": a snapshot of a twin of its own, and what differs between two of them.

It goes through the lab's own door, never through the product's SSH, and shares no code with the product, so that a mistake
there cannot hide itself here. What is Lodger's is left out by the guest's rule: names that begin with `lodger-`, containers
with the label `io.lodger.host`, and its folders.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.twin import Twin

Snapshot = dict[str, dict[str, dict[str, Any]]]
_INSIDE = Path(__file__).with_name("snapshot.py")
# What a restart changes, and nothing else should. An engine that starts again takes what GPU memory it finds.
_VOLATILE = re.compile(r"pid|started|restarts|/dev/nvidia\d+")
# New things of these kinds are traces that somebody left. New images, ports and GPU processes come with every worker.
_TRACES = ("container", "network", "volume", "unit", "program", "mount", "file", "package")


def snapshot(twin: Twin) -> Snapshot:
    """Read everything foreign on a twin."""
    answer: Snapshot = json.loads(twin.exec(["python3", "-"], stdin=_INSIDE.read_text()).stdout)
    return answer


def difference(
    before: Snapshot,
    after: Snapshot,
    *,
    expected: Callable[[str, str], bool] = lambda _kind, _name: False,
    restarted: Callable[[str, str], bool] = lambda _kind, _name: False,
) -> list[str]:
    """Return what was lost, changed or left behind, a sentence each; nothing foreign was touched when it is empty.

    `expected(kind, name)` says of which things any difference is meant (a neighbour that a deploy replaced), `restarted` of
    which only a restart is (a neighbour that was paused and put back). After a reboot, which is told, all may have restarted.
    """
    rebooted = before["boot"] != after["boot"]
    return [
        f"{kind} {name}: {what}"
        for kind in before
        for name in sorted({*before[kind], *after[kind]})
        if not expected(kind, name)
        for what in _differences(kind, before[kind].get(name), after[kind].get(name), rebooted or restarted(kind, name))
    ]


def _differences(kind: str, old: dict[str, Any] | None, new: dict[str, Any] | None, restarted: bool) -> Iterator[str]:
    if old is None:
        if kind in _TRACES:
            yield f"is new: {new}"
    elif new is None:
        yield f"is gone: {old}"
    else:
        for fact in sorted({*old, *new}):
            if old.get(fact) != new.get(fact) and not (restarted and _VOLATILE.fullmatch(fact)):
                yield f"{fact} was {old.get(fact)}, is {new.get(fact)}"
