"""Tags to digests: asks each image's registry what its tag means today, and writes the answer into ``fleet.yml``.

Everything else in the file stays byte for byte what it was. A host is not contacted.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode

from lodger import inventory
from lodger.errors import LodgerError
from lodger.inventory import Image, strict_yaml

if TYPE_CHECKING:
    import requests

    from lodger.exchange import Outside


_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class PinnedDigest:
    """What ``pin`` found for one image; ``old`` is None where it had no digest, and equals ``new`` where nothing moved."""

    image: str
    tag: str
    old: str | None
    new: str

    @property
    def changed(self) -> bool:
        """Whether fleet.yml says something else now."""
        return self.old != self.new

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.image}: {self.tag} is still {self.new}"
        return f"{self.image}: {self.tag} was {self.old or 'not pinned'}, is {self.new}"


def pin(hosts_dir: Path) -> list[PinnedDigest]:
    """Pin every image of the inventory and return one Change for each, in the inventory's order.

    TLS certificates are verified; ``SSL_CERT_FILE`` names other authorities. Raises InventoryError for an inventory that
    cannot be read, and LodgerError when a registry cannot be asked or knows no such tag; fleet.yml is then as it was.
    """
    from lodger.exchange import Outside  # noqa: PLC0415  # slow to import, and only needed here

    images = inventory.load(hosts_dir).images
    with Outside() as client:
        changes = [
            PinnedDigest(name, f"{image.repository}:{image.tag}", image.digest, _ask(client, image))
            for name, image in images.items()
        ]
    new = {change.image: change.new for change in changes if change.changed}
    if new:
        path = (hosts_dir / "fleet.yml").resolve()
        _replace(path, edited(path.read_bytes(), new))
    return changes


# ---------------------------------------------------------------- the registry


def _ask(client: Outside, image: Image) -> str:
    """Return the digest of an image's tag; the present one when the tag's index still lists it for some platform."""
    from lodger.exchange import ERRORS, reason  # noqa: PLC0415  # see pin

    registry, _, name = image.repository.partition("/")
    if registry in ("docker.io", "index.docker.io"):
        registry = "registry-1.docker.io"
        name = name if "/" in name else f"library/{name}"
    url = f"https://{registry}/v2/{name}/manifests/{image.tag}"
    where = f"{image.repository}:{image.tag}"
    headers = {"Accept": ", ".join(_INDEXES + _MANIFESTS)}
    try:
        answer = client.ask("HEAD", url, headers=headers)
        if answer.status_code == 401:
            headers["Authorization"] = f"Bearer {_token(client, answer, name)}"
            answer = client.ask("HEAD", url, headers=headers)
        digest = answer.headers.get("Docker-Content-Digest", "")
        is_index = answer.headers.get("Content-Type", "").split(";")[0].strip() in _INDEXES
        if _well(answer) and (not digest or (is_index and image.digest not in (None, digest))):
            answer = client.ask("GET", url, headers=headers)
            digest = digest or f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
            if _well(answer) and is_index and image.digest in _listed(answer.json()):
                return str(image.digest)
    except (*ERRORS, ValueError) as error:
        tls = "; name the authority's certificate with SSL_CERT_FILE" if "CERTIFICATE_VERIFY" in str(error) else ""
        raise LodgerError(
            f"cannot ask {registry} what {where} is",
            cause=reason(error),
            hint=f"check the repository's name and the way to {registry}{tls}",
        ) from error
    if answer.status_code == 404:
        raise LodgerError(f"{registry} has no {where}", hint=f"correct images.{image.name} in fleet.yml: repository or tag")
    if answer.status_code in (401, 403):
        raise LodgerError(
            f"{registry} shows {where} only to somebody with an account",
            cause=f"HTTP {answer.status_code}",
            hint="write the digest into fleet.yml by hand; `docker buildx imagetools inspect` shows it once logged in",
        )
    if not _well(answer) or not _DIGEST.fullmatch(digest):
        raise LodgerError(
            f"{registry} gives no digest for {where}",
            cause=f"HTTP {answer.status_code}, digest {digest[:80]!r}",
            hint="try again later, or name another registry that has the image",
        )
    return str(digest)


def _well(answer: requests.Response) -> bool:
    return 200 <= answer.status_code < 300


def _listed(index: Any) -> set[str]:
    """Return the digests of the manifests that an index lists."""
    manifests = index.get("manifests", []) if isinstance(index, dict) else []
    return {str(item.get("digest")) for item in manifests if isinstance(item, dict)}


def _token(client: Outside, challenge: requests.Response, name: str) -> str:
    """Return the token for anonymous reading that the registry's challenge points to, "" when it points to none."""
    scheme, _, rest = challenge.headers.get("WWW-Authenticate", "").partition(" ")
    fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = fields.pop("realm", "")
    if scheme.lower() != "bearer" or not realm.startswith("https://"):
        return ""
    query = {"scope": f"repository:{name}:pull"} | {key: fields[key] for key in ("service", "scope") if key in fields}
    answer = client.ask("GET", realm, params=query)
    body = answer.json() if _well(answer) else {}
    return str(body.get("token") or body.get("access_token") or "") if isinstance(body, dict) else ""


# ---------------------------------------------------------------- the file


def edited(raw: bytes, digests: Mapping[str, str]) -> bytes:
    """Return the content of a fleet.yml with the digests of some images replaced or added, and nothing else changed."""
    text = raw.decode("utf-8")
    newline = "\r\n" if "\r\n" in text else "\n"
    mark = len(text) - len(text.removeprefix("\ufeff"))
    root = YAML(typ="safe", pure=True).compose(text[mark:])
    edits = []
    for name, digest in digests.items():
        image = _entry(_entry(root, "images")[1], name)[1]
        key, old = _entry(image, "digest")
        if old is not None and old.value:
            edits.append((old.start_mark.index, old.end_mark.index, f'"{digest}"'))
            continue
        if key is not None:  # with nothing behind it, and the parser sees that nothing somewhere further on
            colon = text.index(":", key.end_mark.index + mark) - mark + 1
            edits.append((colon, colon, f' "{digest}"'))
            continue
        end = _entry(image, "tag")[1].end_mark.index
        if image.flow_style:
            edits.append((end, end, f', digest: "{digest}"'))
        else:
            end = text.find("\n", end + mark)
            end = len(text) - mark if end < 0 else end - mark
            end -= text[mark:][end - 1 : end] == "\r"
            indent = " " * image.value[0][0].start_mark.column
            edits.append((end, end, f'{newline}{indent}digest: "{digest}"'))
    for start, end, new in sorted(edits, reverse=True):
        text = text[: start + mark] + new + text[end + mark :]
    result = text.encode("utf-8")
    _check(raw, result, digests)
    return result


def _entry(mapping: Any, key: str) -> tuple[Any, Any]:
    """Return the nodes of a key and of its value, None for both where the mapping has no such key."""
    assert isinstance(mapping, MappingNode)  # noqa: S101  # the inventory was loaded from the same text
    return next(((name, value) for name, value in mapping.value if name.value == key), (None, None))


def _check(before: bytes, after: bytes, digests: Mapping[str, str]) -> None:
    """Refuse an edit after which the file says anything else than before, the digests apart."""
    old, new = strict_yaml.read(before), strict_yaml.read(after)
    expected: Any = old.data
    for name, digest in digests.items():
        expected["images"][name]["digest"] = digest
    if new.problems or new.data != expected:
        raise LodgerError(
            "fleet.yml is laid out in a way that pin cannot edit", hint="write the digests by hand, with `digest:`"
        )


def _replace(path: Path, content: bytes) -> None:
    """Put ``content`` in the place of a file at once: a reader, or a power cut, sees the old one or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.chmod(path.stat().st_mode & 0o7777)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
