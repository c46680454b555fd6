"""Room on disks, and ports of our services."""

from __future__ import annotations

from collections.abc import Iterator

from lodger.checks.doctor.finding import error_finding, gib, note_finding, ok_finding, warning_finding
from lodger.checks.doctor.reading import HostReading, fit, images_of, pinned, weights
from lodger.checks.doctor.report import DoctorFinding
from lodger.engines import engine_in
from lodger.host import facts
from lodger.host.facts import health
from lodger.host.ownership import declared, is_ours, names, owners, port_owner


def room(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that there is room for our files, and for images and weights that are not on the host yet."""
    read = at.read
    found = [error_finding(one.what, one.cause, one.hint) for one in fit(at.host).room(read)]
    yield from found
    if not found:
        yield ok_finding("our own folders can be written")
    free = read[health.DOCKER_ROOM]
    engines = {at.fleet.pools[worker.pool].image for worker in at.host.workers.values()}
    for name, image in images_of(at.fleet, at.host).items():
        needed = engine_in(image).image_room if name in engines else 2**30
        if image.digest is None:
            yield note_finding("an image has no digest yet", f"{image.repository}:{image.tag}", "./ops pin")
        elif not read[facts.DOCKER].server:
            continue
        elif read[pinned(at.fleet, at.host)].get(image.reference):
            yield ok_finding("an image is on the host", image.reference)
        elif free < needed:
            measured = f"{gib(free)} are free below Docker's folder, about {gib(needed)} are needed for {image.reference}"
            yield error_finding(
                "there is no room for an image", measured, "make room; `docker system df -v` shows what takes it"
            )
        else:
            yield note_finding(
                "an image is not on the host yet", f"{image.reference}, {gib(free)} are free", "a deploy pulls it"
            )
    missing = 0
    for name, state in weights(at.fleet, at.host).items():
        folder, size = read[state.fact], at.fleet.models[name].size_bytes
        where = state.fact.name.removeprefix("folder ")
        if not (what := state.missing(read)):
            yield ok_finding("weights are on the host", f"{name}: {gib(folder.size)} in {where}")
            continue
        missing += max(0, (size or 0) - folder.size)
        measured = f"{name}: {gib(folder.size)} of {gib(size) if size else 'an unknown size'} in {where}"
        todo = f"./ops fetch --host {at.host.name}, or correct `models_dir`"
        yield error_finding(what, measured, todo) if folder.mixed else warning_finding(what, measured, todo)
    disk = read[facts.disk_fact(at.host.models_dir)]
    if missing > disk.free:
        measured = f"{gib(missing)} are missing, {gib(disk.free)} are free below {at.host.models_dir}"
        yield error_finding("there is no room for the weights", measured, "make room, or name another `models_dir`")


def ports(at: HostReading) -> Iterator[DoctorFinding]:
    """Check that the ports of our services are free, or ours."""
    host, read = at.host, at.read
    wanted = {worker.port: f"worker {name}" for name, worker in host.workers.items()}
    if host.router:
        wanted |= {host.router.port: "the router", host.router.prometheus_port: "the router's metrics"}
    who = owners(read)
    replaced = {owner for owner, one in declared(host).items() if one.policy == "replace"}
    said: set[int] = set()
    for port in read[facts.PORTS]:
        if port.protocol != "tcp" or port.port not in wanted or port.port in said:
            continue
        said.add(port.port)
        owner = port_owner(port, who, read)
        measured = (
            f"{port.address}:{port.port}, {wanted[port.port]}: {owner or port.process or 'owner unknown'}, pid {port.pid}"
        )
        if is_ours(owner, read, host.name):
            yield ok_finding("a port is held by Lodger's own service", measured)
        elif owner and names(owner, read) & replaced:
            yield note_finding("a port is held by a neighbour", measured, "a deploy stops it first, as the inventory says")
        else:
            todo = "ask its owner, or choose another port in the inventory"
            yield error_finding(f"the port of {wanted[port.port]} is taken", measured, todo)
    if free := sorted(set(wanted) - said):
        yield ok_finding("ports are free", ", ".join(map(str, free)))
