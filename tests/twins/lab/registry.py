"""What twins pull, and the registry's own word for it."""

from __future__ import annotations

from lab.image import REGISTRY
from lab.lab import Lab
from lab.twin import Twin

ENGINE = f"{REGISTRY}/lmsysorg/sglang"


def pull(twin: Twin, lab: Lab, tag: str) -> str:
    """Pull by digest, as the product does, and return the reference."""
    digest = next(value for name, value in digests(lab).items() if name.endswith(tag))
    twin.exec(["docker", "pull", "-q", f"{ENGINE}@{digest}"])
    return f"{ENGINE}@{digest}"


def digests(lab: Lab) -> dict[str, str]:
    """Ask the registry, from inside a twin, where it has its real name and a certificate that is trusted."""
    found = {}
    for tag in ("v0.5.19-cu129", "v0.5.20"):
        url = f"https://{REGISTRY}/v2/lmsysorg/sglang/manifests/{tag}"
        accept = "Accept: application/vnd.docker.distribution.manifest.v2+json"
        ca = f"/etc/docker/certs.d/{REGISTRY}/ca.crt"
        head = lab.twin("node2").exec(["curl", "-sfI", "--cacert", ca, "-H", accept, url]).stdout
        found[tag] = next(line.split()[1] for line in head.splitlines() if line.lower().startswith("docker-content-digest"))
    return found
