"""The lab of one checkout: a twin for every host of the inventory, beside them the image registry and a model hub.

    lab = Lab()              # of this checkout; Lab(root, hosts) of another folder and inventory
    lab.up()                 # makes what is missing, mends what is broken; about a second when all is well
    lab.aim()                # LODGER_HOSTS = the overlay: tasks that follow in this process see the twins
    twin = lab.twin("node1") # see Twin: exec, ssh, write, clock, faults, reboot, kill, start, pause, unpause, cut_network ...
    lab.reset(["node1"])     # as it was at first: disk, containers, neighbours
    lab.reset(["node1"], driver="545.23.06")  # as before an upgrade; `up` keeps it so until the next reset
    lab.down()               # nothing is left but cached images

Names of containers and networks carry a hash of the checkout's path, so that checkouts do not collide. State lies in
<root>/.lab: `hosts/` is the overlay (the inventory with only the values replaced in which a twin differs), `keys/` the
operator's key and every host's own. LAB_CLOCK says how much faster than real ones simulated engines start and answer (20).
"""

import contextlib
import hashlib
import ipaddress
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString as Quoted

from lab import certificate, system
from lab.hub import Hub, repositories
from lab.hub import server as hub_server
from lab.image import REGISTRY, Store, driver_image, store, twin_image
from lab.run import CHECKOUT, MACHINE, LabError, digest, locked, run, say
from lab.twin import USER, File, Twin
from lab.world import world
from lodger import inventory

_MADE_FROM = "lodger-lab.made-from"
_DRIVER = "lodger-lab.driver"  # that a twin was asked to start with; empty for the declared one


class Lab:
    """All twins of one checkout."""

    def __init__(
        self, root: Path = CHECKOUT, hosts: Path | None = None, start_drivers: Mapping[str, str] | None = None
    ) -> None:
        """Take the drivers that twins start with where those are not the ones that their host files declare."""
        self.start_drivers = dict(start_drivers or {})
        self.root = root.resolve()
        self.dir = self.root / ".lab"
        self.overlay = self.dir / "hosts"
        self.keys = self.dir / "keys"
        self.id = hashlib.sha256(str(self.root).encode()).hexdigest()[:7]
        self.prefix = f"lodger-lab-{self.id}"
        self.disks = MACHINE / "labs" / self.id
        self.clock = float(os.environ.get("LAB_CLOCK", "20"))
        asked = Path(os.environ.get("LODGER_HOSTS", self.root / "hosts")).resolve()
        # Aimed at the twins already: the inventory they are made from is the checkout's.
        self.hosts = hosts or (self.root / "hosts" if asked == self.overlay else asked)

    @property
    def names(self) -> list[str]:
        """The hosts of the inventory, in order."""
        return sorted(path.stem for path in self.hosts.glob("*.y*ml") if path.stem != "fleet")

    def twin(self, name: str) -> Twin:
        """Return the handle on a twin. Raises LabError for a name that the inventory does not have."""
        if name not in self.names:
            raise LabError(f"there is no host {name} in {self.hosts}", f"there is: {', '.join(self.names) or 'none'}")
        return Twin(
            name=name,
            container=f"{self.prefix}-{name}",
            network=self.prefix,
            address=self._address(11 + self.names.index(name)),
            identity_file=self.keys / "operator",
            known_hosts_file=self.dir / "known_hosts",
            machine_id=uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.id}/{name}").hex,
        )

    def up(self) -> None:
        """Make what is missing, mend what is broken, leave alone what is well; write the overlay.

        Raises LabError when that is not possible, and the inventory's own error when it does not describe a fleet.
        """
        fleet = inventory.load(self.hosts)
        with locked(self.dir / "lock"):
            image, images = self._made()
            forget_vanished()
            self._network()
            self._write_keys(fleet)
            self._depot(image, images)
            self._hub(image, fleet)
            self._drop(set(self._containers()) - {f"{self.prefix}-{name}" for name in ("depot", "hub", *self.names)})
            self._each(self.names, lambda name: self._mend(name, image, images))
            self._write_overlay(images)

    def reset(self, names: Iterable[str], *, driver: str = "") -> None:
        """Make twins as they were at first, or as they would be with another driver than their host files declare.

        Raises LabError when the lab is not up.
        """
        twins = [self.twin(name).name for name in names]
        with locked(self.dir / "lock"):
            image, images = self._made()
            if not self._subnet():
                raise LabError("the lab is not up", "start it with lab.up")
            self._each(twins, lambda name: self._make(name, image, images, driver or self.start_drivers.get(name, "")))

    def down(self) -> None:
        """Remove every container, network, disk, process and mount of this lab; cached images and keys stay."""
        with locked(self.dir / "lock"):
            if system.docker_runs() or system.DATA.exists():
                system.ensure()
                self.remove()
                system.stop_daemon_if_unused()
            shutil.rmtree(self.overlay, ignore_errors=True)

    def remove(self) -> None:
        """Remove this lab's containers, network and disks from a Docker daemon that runs; `down` does more."""
        self._drop(self._containers())
        run(["docker", "network", "rm", self.prefix], check=False)
        shutil.rmtree(self.disks, ignore_errors=True)

    def aim(self) -> None:
        """Point the tasks that follow in this process at the twins."""
        os.environ["LODGER_HOSTS"] = str(self.overlay)

    def status(self) -> dict[str, str]:
        """Return each twin's state in one word: running, paused, exited, ... or absent."""
        found = self._containers() if system.docker_runs() else {}
        return {name: found.get(f"{self.prefix}-{name}", "absent") for name in self.names}

    def router_urls(self) -> list[str]:
        """Return where clients reach the routers of the inventory, those that stand by last."""
        found = [(name, host.router) for name, host in inventory.load(self.hosts).hosts.items() if host.router is not None]
        found.sort(key=lambda one: one[1].standby)
        return [f"http://{self.twin(name).address}:{router.port}" for name, router in found]

    def api_key(self, pool: str = "") -> str:
        """Return the key that clients of a pool (by default that of the first router) send, as its file has it; "" for none."""
        fleet = inventory.load(self.hosts)
        routers = [host.router.pool for host in fleet.hosts.values() if host.router is not None]
        named = fleet.pools[pool or routers[0]].api_key_file if pool or routers else None
        return (fleet.folder / Path(named).expanduser()).read_text(encoding="utf-8").strip() if named else ""

    def describe(self) -> str:
        """Say in a few lines in what the twins differ from their hosts."""
        differ = "address, user, key, machine-id, image digests and the weights' endpoints"
        lines = [f"  {name} is {USER}@{self.twin(name).address}" for name in self.names]
        return "\n".join([f"lab: twins of the hosts in {self.hosts}; only {differ} differ:", *lines])

    def _made(self) -> tuple[str, Store]:
        system.ensure()
        image = twin_image()
        return image, store(image)

    def _containers(self) -> dict[str, str]:
        """Return {name: state} of all containers of this lab."""
        filters = ["--filter", f"label=lodger-lab={self.id}"]
        listed = run(["docker", "ps", "-a", *filters, "--format", "{{.Names}}\t{{.State}}"]).stdout
        return dict(line.split("\t", 1) for line in listed.splitlines())

    def _each(self, names: Iterable[str], act: Callable[[str], None]) -> None:
        """Act on all twins at once; the first failure is raised when all have ended."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(act, list(names)))

    # The network and the keys

    def _subnet(self) -> str:
        """Return the network's range, or nothing when there is no network."""
        form = "{{(index .IPAM.Config 0).Subnet}}"
        return run(["docker", "network", "inspect", "-f", form, self.prefix], check=False).stdout.strip()

    def _network(self) -> None:
        """Make the lab's bridge; its range is kept in a file, so that addresses stay the same from one `up` to the next."""
        chosen = self.dir / "subnet"
        existing = self._subnet()
        if existing:
            chosen.write_text(f"{existing}\n")
            return
        routes = [line.split()[0] for line in run(["ip", "-4", "route"]).stdout.splitlines() if line[:1].isdigit()]
        taken = [ipaddress.ip_network(route, strict=False) for route in routes]
        before = [chosen.read_text().strip()] if chosen.exists() else []
        error = "all are taken"
        for subnet in (*before, *(f"10.213.{(int(self.id, 16) + step) % 256}.0/24" for step in range(256))):
            if any(ipaddress.ip_network(subnet).overlaps(other) for other in taken):
                continue
            labels = [f"--label={key}={value}" for key, value in self.labels("").items()]
            made = run(["docker", "network", "create", *labels, f"--subnet={subnet}", self.prefix], check=False)
            if made.returncode == 0:
                chosen.write_text(f"{subnet}\n")
                return
            error = made.stderr.strip()
        raise LabError(f"no network for the lab between 10.213.0.0 and 10.213.255.255: {error}", "remove a route of that range")

    def _address(self, number: int) -> str:
        chosen = self.dir / "subnet"
        return str(ipaddress.ip_network(chosen.read_text().strip())[number]) if chosen.exists() else "0.0.0.0"

    def _write_keys(self, fleet: inventory.Fleet) -> None:
        self.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("operator", *self.names):
            if not (self.keys / f"{name}.pub").exists():
                (self.keys / name).unlink(missing_ok=True)
                run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", self.keys / name])
        certificate.ensure(self.keys, _registries(fleet))
        lines = []
        for name in self.names:
            kind, key, *_ = (self.keys / f"{name}.pub").read_text().split()
            lines.append(f"{self.twin(name).address} {kind} {key}\n")
        (self.dir / "known_hosts").write_text("".join(lines))

    # Containers

    def _drop(self, containers: Iterable[str]) -> None:
        names = sorted(containers)
        if names:
            run(["docker", "rm", "-f", "-v", *names])
        for name in names:
            shutil.rmtree(self.disks / name, ignore_errors=True)
            _remove_cgroup(name)

    def labels(self, made_from: str) -> dict[str, str]:
        """Return the labels of everything that this lab has the daemon make, by which it is found again."""
        return {"lodger-lab": self.id, "lodger-lab.root": str(self.root), _MADE_FROM: made_from}

    @property
    def depot(self) -> str:
        """The address of the image registry beside the twins."""
        return self._address(2)

    def _depot(self, image: str, images: Store) -> None:
        """Have the registry run beside the twins, under its real name."""
        name = f"{self.prefix}-depot"
        made_from = digest(image, str(images.path), self.depot, self.keys / "registry.crt")
        if self._runs(name, made_from):
            return
        self._drop({name} & set(self._containers()))
        tls = {"certificate": "/keys/registry.crt", "key": "/keys/registry.key"}
        settings = {
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": "/registry"}, "maintenance": {"readonly": {"enabled": True}}},
            "http": {"addr": ":443", "tls": tls},
        }
        (self.dir / "registry.yml").write_text(json.dumps(settings))
        mounts = [f"{images.registry}:/registry:ro", f"{self.keys}:/keys:ro", f"{self.dir / 'registry.yml'}:/registry.yml:ro"]
        labels = {**self.labels(made_from), "lodger-lab.store": images.path.name}
        options = [
            f"--name={name}",
            f"--network={self.prefix}",
            f"--ip={self._address(2)}",
            "--restart=unless-stopped",
            *(f"--volume={mount}" for mount in mounts),
            *(f"--label={key}={value}" for key, value in labels.items()),
            "--entrypoint=/usr/lib/twin/docker-registry",
        ]
        run(["docker", "run", "-d", *options, image, "serve", "/registry.yml"])

    @property
    def hub(self) -> Hub:
        """The model hub beside the twins."""
        return Hub(f"http://{self._address(3)}")

    def _hub(self, image: str, fleet: inventory.Fleet) -> None:
        """Have the model hub run beside the twins."""
        name, server, offered = f"{self.prefix}-hub", Path(hub_server.__file__), self.dir / "hub.json"
        offered.write_text(json.dumps(repositories(fleet)))
        made_from = digest(image, self._address(3), server, offered)
        if self._runs(name, made_from):
            return
        self._drop({name} & set(self._containers()))
        options = [
            f"--name={name}",
            f"--network={self.prefix}",
            f"--ip={self._address(3)}",
            "--restart=unless-stopped",
            "--cap-add=NET_ADMIN",  # a benchmark shapes its rate
            f"--volume={server}:/server.py:ro",
            f"--volume={offered}:/hub.json:ro",
            *(f"--label={key}={value}" for key, value in self.labels(made_from).items()),
            "--entrypoint=/usr/bin/python3",
        ]
        run(["docker", "run", "-d", *options, image, "/server.py", "/hub.json"])

    def _runs(self, name: str, made_from: str) -> bool:
        asked = ["docker", "inspect", "-f", f'{{{{.State.Running}}}} {{{{index .Config.Labels "{_MADE_FROM}"}}}}', name]
        return run(asked, check=False).stdout.split() == ["true", made_from]

    def _mend(self, name: str, image: str, images: Store) -> None:
        """Make a twin that is missing or made from something else; bring back one that is off; leave alone one that is well."""
        twin = self.twin(name)
        made_from, state = twin.label(_MADE_FROM), twin.state()
        driver = self.start_drivers.get(name) or twin.label(_DRIVER)
        if made_from != digest(*self._recipe(name, image, driver)):
            if made_from:
                say(f"{name} is made anew: what it is made from has changed")
            self._make(name, image, images, driver)
            return
        try:
            if state == "paused":
                twin.unpause()
            elif state != "running":
                say(f"starting {name}, which was {state}")
                run(["docker", "start", twin.container])
            twin.restore_network()
            twin.wait_ready()
            twin.clock(self.clock)
        except LabError as error:
            say(f"{name} is made anew: {error}")
            self._make(name, image, images, driver)

    def _recipe(self, name: str, image: str, driver: str) -> tuple[str, str]:
        """Return what a twin is made from."""
        return f"{driver} {image}", repr(self._content(name, driver))

    def _make(self, name: str, image: str, images: Store, driver: str) -> None:
        """Make a twin that starts with `driver`; with the one that its host file declares if that is empty."""
        twin = self.twin(name)
        self._drop({twin.container} & set(self._containers()))
        disk = self.disks / twin.container / "docker"
        shutil.rmtree(disk, ignore_errors=True)
        images.new_disk(disk)
        files, names = self._content(name, driver)
        labels = {**self.labels(digest(*self._recipe(name, image, driver))), _DRIVER: driver}
        files["/var/lib/twin/clock"] = File(f"{self.clock}\n")
        version = driver or inventory.load(self.hosts).hosts[name].driver
        twin.create(driver_image(image, version), disk=disk, labels=labels, names=names, files=files)
        twin.start()

    def _content(self, name: str, driver: str) -> tuple[dict[str, File], dict[str, str]]:
        """Return the files that a twin gets, and the addresses that it knows by name."""
        fleet = inventory.load(self.hosts)
        host = fleet.hosts[name]
        made = world(fleet, host, self.twin(name).machine_id, driver or host.driver)
        authority, registries = File((self.keys / "ca.crt").read_text()), _registries(fleet)
        files = {
            **made.files,
            "/etc/twin.json": File(json.dumps(made.spec), 0o600),
            **{f"/etc/docker/certs.d/{registry}/ca.crt": authority for registry in registries},
            f"/home/{USER}/.ssh/authorized_keys": File((self.keys / "operator.pub").read_text()),
            "/etc/ssh/ssh_host_ed25519_key": File((self.keys / name).read_text(), 0o600),
            "/etc/ssh/ssh_host_ed25519_key.pub": File((self.keys / f"{name}.pub").read_text()),
        }
        names = {
            **dict.fromkeys(registries, self._address(2)),
            **{other: self.twin(other).address for other in self.names if other != name},
        }
        return files, names

    # The overlay

    def _write_overlay(self, images: Store) -> None:
        shutil.rmtree(self.overlay, ignore_errors=True)
        shutil.copytree(self.hosts, self.overlay)
        with _edited(self.overlay, "fleet") as fleet:
            for image in fleet["images"].values():
                name = f"{image['repository'].partition('/')[2]}:{image['tag']}"
                if name in images.digests:
                    image["digest"] = Quoted(images.digests[name])
                else:
                    say(f"there is no stand-in for {image['repository']}:{image['tag']}; twins cannot pull it")
            for source in fleet["weights"]["endpoints"]:
                fleet["weights"]["endpoints"][source] = Quoted(f"{self.hub.url}/{source}")
        for name in self.names:
            twin = self.twin(name)
            with _edited(self.overlay, name) as host:
                host["address"] = twin.address
                files = {"identity_file": str(twin.identity_file), "known_hosts_file": str(twin.known_hosts_file)}
                host["ssh"] = {"user": USER, "port": 22, **files}
                host["machine_id"] = Quoted(twin.machine_id)


@contextlib.contextmanager
def _edited(folder: Path, stem: str) -> Iterator[Any]:
    """Give the data of an inventory file and write it back, comments and all."""
    path = next(folder.glob(f"{stem}.y*ml"))
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    data = yaml.load(path.read_text())
    yield data
    with path.open("w") as out:
        yaml.dump(data, out)


def _registries(fleet: inventory.Fleet) -> list[str]:
    """Return the names of the registries that the fleet's images come from; all of them lead to the lab's own."""
    return sorted({REGISTRY, *(image.repository.partition("/")[0] for image in fleet.images.values())})


def forget_vanished() -> None:
    """Remove the labs of checkouts that are gone; labs that come up side by side do so one after another."""
    label = "lodger-lab.root"
    asked = ["--filter", f"label={label}", "--format", f'{{{{.Label "{label}"}}}}']
    with locked(MACHINE / "vanished.lock"):
        found = run(["docker", "ps", "-a", *asked]).stdout + run(["docker", "network", "ls", *asked]).stdout
        for root in {Path(line) for line in found.splitlines()}:
            if not root.exists():
                say(f"removing the lab of {root}, which is gone")
                Lab(root).remove()


def _remove_cgroup(name: str) -> None:
    """Remove the cgroups that a twin's systemd made; a machine that shows no cgroup v2 tree has nothing to remove.

    One whose last process is still on its way out stays, empty, and goes with the twin of the same name next time.
    """
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        top = Path(mount) / name
        if kind == "cgroup2" and top.is_dir():
            folders = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
            with contextlib.suppress(OSError):
                for folder in (*folders, top):
                    folder.rmdir()
