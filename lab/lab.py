"""The lab of one checkout: a twin for every host of the inventory, and beside them a depot with the image registry.

    lab = Lab()                      # of this checkout; Lab(root, hosts) of another folder
    lab.up()                         # makes or mends everything; a few seconds when all is well
    lab.aim()                        # LODGER_HOSTS = the overlay: the following tasks see the twins
    twin = lab.twin("node1")         # Twin: exec, ssh, write, clock, faults, reboot, kill, start, pause, unpause, cut_network, restore_network
    lab.reset(["node1"])             # as it was at first: disk, containers, neighbours
    lab.down()                       # nothing is left but cached images

Names of containers and networks carry a hash of the checkout's path, so that checkouts do not collide. State lies in <root>/.lab: `hosts/` is the
overlay (the inventory with only the values replaced in which a twin differs), `keys/` the operator's key and every twin's host key.
"""

import contextlib
import hashlib
import ipaddress
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from lab import certificate, system
from lab.image import REGISTRY, Store, store, twin_image
from lab.run import CHECKOUT, MACHINE, LabError, digest, locked, run, say, wait_until
from lab.twin import USER, Twin, create, machine_id
from lab.world import File, World, world

CA_FILE = "/usr/local/share/ca-certificates/lab.crt"


class Lab:
    """All twins of one checkout."""

    def __init__(self, root: Path = CHECKOUT, hosts: Path | None = None) -> None:
        self.root = root.resolve()
        self.dir = self.root / ".lab"
        asked = Path(os.environ.get("LODGER_HOSTS", self.root / "hosts")).resolve()
        self.hosts = hosts or (self.root / "hosts" if asked == self.overlay else asked)
        self.id = hashlib.sha256(str(self.root).encode()).hexdigest()[:7]
        self.prefix = f"lodger-lab-{self.id}"
        self.disks = MACHINE / "labs" / self.id
        # How many times faster than real ones simulated engines start and answer.
        self.clock = float(os.environ.get("LAB_CLOCK", "20"))

    @property
    def overlay(self) -> Path:
        """The folder with the twins' inventory."""
        return self.dir / "hosts"

    @property
    def names(self) -> list[str]:
        """The hosts of the inventory, in order."""
        return sorted(path.stem for path in self.hosts.glob("*.yml") if path.stem != "fleet")

    def twin(self, name: str) -> Twin:
        """Return the handle on a twin. Raises LabError for a name that the inventory does not have."""
        if name not in self.names:
            raise LabError(f"there is no host {name} in {self.hosts}", f"there is: {', '.join(self.names)}")
        network = ipaddress.ip_network(self._subnet() or "0.0.0.0/0")
        return Twin(
            name=name,
            container=f"{self.prefix}-{name}",
            address=str(network[11 + self.names.index(name)]),
            network=self.prefix,
            identity_file=self.dir / "keys" / "operator",
            known_hosts_file=self.dir / "known_hosts",
            machine_id=machine_id(self.id, name),
        )

    def up(self) -> None:
        """Make what is missing, mend what is broken, leave alone what is well; write the overlay."""
        with self._alone():
            system.ensure()
            image = twin_image()
            images = store(image)
            self._network()
            self._keys()
            self._depot(image, images)
            self._drop(set(self._containers()) - {f"{self.prefix}-{name}" for name in ["depot", *self.names]})
            self._each(self.names, lambda name: self._twin_up(name, image, images))
            self._write_overlay(images)

    def reset(self, names: Iterable[str]) -> None:
        """Make twins as they were at first."""
        with self._alone():
            system.ensure()
            image = twin_image()
            images = store(image)
            if self._subnet() is None:
                raise LabError("the lab is not up", "start it with lab.up")
            self._each(names, lambda name: self._make(name, image, images))

    def down(self) -> None:
        """Remove every container, network, disk, process and mount of this lab. Cached images stay for the next time."""
        with self._alone():
            if system.docker_runs():
                self._drop(set(self._containers()))
                run(["docker", "network", "rm", self.prefix], check=False)
                system.stop_daemon_if_unused()
            shutil.rmtree(self.disks, ignore_errors=True)
            shutil.rmtree(self.overlay, ignore_errors=True)

    def aim(self) -> None:
        """Point the tasks that follow in this process at the twins."""
        os.environ["LODGER_HOSTS"] = str(self.overlay)

    def status(self) -> dict[str, str]:
        """Return each twin's condition in one word: running, paused, exited, ... or absent."""
        found = self._containers() if system.docker_runs() else {}
        return {name: found.get(f"{self.prefix}-{name}", "absent") for name in self.names}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with locked(self.dir / "lock"):
            yield

    def _containers(self) -> dict[str, str]:
        """Return {name: state} of all containers of this lab."""
        form = "{{.Names}}\t{{.State}}"
        listed = run(["docker", "ps", "-a", "--filter", f"label=lodger-lab={self.id}", "--format", form]).stdout
        return dict(line.split("\t", 1) for line in listed.splitlines())

    def _each(self, names: Iterable[str], act: Any) -> None:
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(act, list(names)):
                pass

    # The network

    def _subnet(self) -> str | None:
        asked = run(["docker", "network", "inspect", "-f", "{{(index .IPAM.Config 0).Subnet}}", self.prefix], check=False)
        return asked.stdout.strip() if asked.returncode == 0 else None

    def _network(self) -> None:
        if self._subnet() is not None:
            return
        taken = [
            ipaddress.ip_network(line.split()[0], strict=False)
            for line in run(["ip", "-4", "route"]).stdout.splitlines()
            if line[0].isdigit()
        ]
        start = int(self.id, 16)
        for step in range(256):
            subnet = ipaddress.ip_network(f"10.213.{(start + step) % 256}.0/24")
            if not any(subnet.overlaps(other) for other in taken):
                made = run(
                    ["docker", "network", "create", "--label", f"lodger-lab={self.id}", "--subnet", str(subnet), self.prefix],
                    check=False,
                )
                if made.returncode == 0:
                    return
        raise LabError(
            f"no free network for the lab: {made.stderr.strip()}", "it takes one of 10.213.0.0/24 to 10.213.255.0/24"
        )

    # Keys

    def _keys(self) -> None:
        folder = self.dir / "keys"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name in ["operator", *self.names]:
            if not (folder / f"{name}.pub").exists():
                (folder / name).unlink(missing_ok=True)
                run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name])
        certificate.ensure(folder, REGISTRY)
        lines = [
            f"{self.twin(name).address} {' '.join((folder / f'{name}.pub').read_text().split()[:2])}\n" for name in self.names
        ]
        (self.dir / "known_hosts").write_text("".join(lines))

    # Containers

    def _drop(self, containers: Iterable[str]) -> None:
        names = sorted(containers)
        if names:
            run(["docker", "rm", "-f", "-v", *names])
            for name in names:
                shutil.rmtree(self.disks / name, ignore_errors=True)
                _remove_cgroup(name)

    def _labels(self, kind: str) -> list[str]:
        return ["--label", f"lodger-lab={self.id}", "--label", f"lodger-lab.made-from={kind}"]

    def _made_from(self, container: str) -> str | None:
        asked = run(["docker", "inspect", "-f", '{{index .Config.Labels "lodger-lab.made-from"}}', container], check=False)
        return asked.stdout.strip() if asked.returncode == 0 else None

    def _depot(self, image: str, images: Store) -> None:
        """Have the registry run beside the twins, under its real name."""
        name, keys = f"{self.prefix}-depot", self.dir / "keys"
        made_from = digest(image, str(images.path), keys / f"{REGISTRY}.crt")
        if self._made_from(name) == made_from and self._containers().get(name) == "running":
            return
        self._drop([name] if self._made_from(name) else [])
        settings = {
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": "/registry"}, "maintenance": {"readonly": {"enabled": True}}},
            "http": {"addr": ":443", "tls": {"certificate": f"/keys/{REGISTRY}.crt", "key": f"/keys/{REGISTRY}.key"}},
        }
        (self.dir / "registry.yml").write_text(json.dumps(settings))
        mounts = [f"{images.registry}:/registry:ro", f"{keys}:/keys:ro", f"{self.dir / 'registry.yml'}:/registry.yml:ro"]
        run(["docker", "run", "-d", "--name", name, "--network", self.prefix, "--ip", self._depot_address(), "--restart=unless-stopped", *self._labels(made_from),
             *(word for mount in mounts for word in ("-v", mount)), "--entrypoint=/usr/lib/twin/docker-registry", image, "serve", "/registry.yml"])  # fmt: skip

    def _depot_address(self) -> str:
        return str(ipaddress.ip_network(self._subnet() or "")[2])

    def _world(self, name: str) -> World:
        host, fleet = _read(self.hosts / f"{name}.yml"), _read(self.hosts / "fleet.yml")
        return world(host, fleet, self.hosts / "models", machine_id(self.id, name), self.clock)

    def _twin_up(self, name: str, image: str, images: Store) -> None:
        twin = self.twin(name)
        made_from = self._made_from(twin.container)
        if made_from != self._recipe(name, image):
            if made_from is not None:
                say(f"{name} is made anew: what it is made from has changed")
            self._make(name, image, images)
            return
        state = self._containers().get(twin.container)
        if state == "paused":
            twin.unpause()
        elif state != "running":
            say(f"starting {name} again")
            run(["docker", "start", twin.container])
        twin.restore_network()
        twin.wait_ready()

    def _recipe(self, name: str, image: str) -> str:
        keys = self.dir / "keys"
        made = self._world(name)
        return digest(
            image,
            self.twin(name).address,
            json.dumps(made.spec),
            repr(made.files),
            keys / "ca.crt",
            keys / "operator.pub",
            keys / f"{name}.pub",
        )

    def _make(self, name: str, image: str, images: Store) -> None:
        twin, keys, made = self.twin(name), self.dir / "keys", self._world(name)
        if self._made_from(twin.container) is not None:
            self._drop([twin.container])
        disk = self.disks / twin.container / "docker"
        shutil.rmtree(disk, ignore_errors=True)
        authority = (keys / "ca.crt").read_text()
        extra = {
            f"/home/{USER}/.ssh/authorized_keys": File((keys / "operator.pub").read_text(), 0o644),
            "/etc/ssh/ssh_host_ed25519_key": File((keys / name).read_text(), 0o600),
            "/etc/ssh/ssh_host_ed25519_key.pub": File((keys / f"{name}.pub").read_text()),
            CA_FILE: File(authority),
            f"/etc/docker/certs.d/{REGISTRY}/ca.crt": File(authority),
        }
        others = {other: self.twin(other).address for other in self.names if other != name}
        create(
            twin,
            image,
            images,
            made,
            disk,
            extra,
            self._labels(self._recipe(name, image)),
            {REGISTRY: self._depot_address(), **others},
        )
        run(["docker", "start", twin.container])
        twin.wait_ready()

    # The overlay

    def _write_overlay(self, images: Store) -> None:
        shutil.rmtree(self.overlay, ignore_errors=True)
        shutil.copytree(self.hosts, self.overlay)
        fleet = _read(self.overlay / "fleet.yml")
        for image in fleet.get("images", {}).values():
            here = images.digests.get(f"{image['repository'].removeprefix(REGISTRY + '/')}:{image['tag']}")
            if here:
                image["digest"] = DoubleQuotedScalarString(here)
        for source in fleet.get("weights", {}).get("endpoints", {}):
            fleet["weights"]["endpoints"][source] = DoubleQuotedScalarString(f"http://{self._depot_address()}/{source}")
        _write(self.overlay / "fleet.yml", fleet)
        for name in self.names:
            twin, host = self.twin(name), _read(self.overlay / f"{name}.yml")
            host["address"] = twin.address
            host["ssh"] = {
                "user": USER,
                "port": 22,
                "identity_file": str(twin.identity_file),
                "known_hosts_file": str(twin.known_hosts_file),
            }
            host["machine_id"] = DoubleQuotedScalarString(twin.machine_id)
            _write(self.overlay / f"{name}.yml", host)

    def describe(self) -> str:
        """Say in a few lines in what the twins differ from their hosts."""
        lines = [
            f"  {name}: {self.twin(name).address}, user {USER}, key {self.dir / 'keys' / 'operator'}" for name in self.names
        ]
        return "\n".join(
            [
                f"twins of {self.hosts}, which differ in address, user, key, machine-id, image digests and weights endpoint:",
                *lines,
            ]
        )


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    return yaml


def _read(path: Path) -> Any:
    return _yaml().load(path.read_text())


def _write(path: Path, data: Any) -> None:
    with path.open("w") as out:
        _yaml().dump(data, out)


def _remove_cgroup(name: str) -> None:
    """Remove the cgroups that a twin's systemd made; where the machine does not show the cgroup v2 tree they go with it."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        top = Path(mount) / name
        if kind == "cgroup2" and top.is_dir():
            for folder in sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts)):
                folder.rmdir()
            top.rmdir()
