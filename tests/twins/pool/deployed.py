"""What the tests of a pool begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab import judge
from tests.twins.site import Ran, Site


@dataclass(frozen=True)
class Deployed:
    """The first deploy of both hosts: how they were before it, and what it said."""

    site: Site
    before: Mapping[str, judge.Snapshot]
    said: Ran
