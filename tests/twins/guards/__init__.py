"""Pieces of source files that guard against something, each with the test that must fail when it is taken out."""

from tests.twins.guards import driver, pool, refusals, runs, weights

GUARDS = [*refusals.GUARDS, *weights.GUARDS, *runs.GUARDS, *pool.GUARDS, *driver.GUARDS]
