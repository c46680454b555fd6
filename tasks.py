"""The index of verbs: Lodger's own, each in `lodger/tasks/`, and beside them those of the lab and the benchmarks."""

from bench.tasks import ns as bench
from lab.tasks import ns as lab
from lodger.tasks import ns

ns.add_collection(lab)
ns.add_collection(bench)

__all__ = ["ns"]
