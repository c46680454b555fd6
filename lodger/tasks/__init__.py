"""The tasks of the command line, one module a theme; ``ns`` has all of them."""

from invoke.collection import Collection

from lodger.tasks.deploy import deploy, pause, plan, resume, rollback, runbook
from lodger.tasks.dev import test
from lodger.tasks.inspect import affinity, doctor, smoke, verify
from lodger.tasks.journal import journal, postmortem
from lodger.tasks.offline import capacity, lint, pin, render, runbook_check
from lodger.tasks.weights import fetch

ns = Collection(
    deploy,
    plan,
    rollback,
    pause,
    resume,
    verify,
    smoke,
    doctor,
    affinity,
    render,
    lint,
    capacity,
    pin,
    fetch,
    journal,
    postmortem,
    test,
)
_runbooks = Collection("runbook", runbook_check)
_runbooks.add_task(runbook, default=True)
ns.add_collection(_runbooks)

__all__ = ["ns"]
