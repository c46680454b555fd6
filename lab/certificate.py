"""A certificate authority of the lab's own, and the registry's certificate signed by it."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_YEARS = datetime.timedelta(days=3650)


def ensure(folder: Path, names: Sequence[str]) -> None:
    """Write ca.crt, registry.crt and registry.key, good for all of `names`, into a folder unless they are there."""
    done = folder / "registry.names"
    if done.exists() and done.read_text().split() == list(names):
        return
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    ca = _builder(authority, authority, authority_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry")])
    leaf = _builder(subject, authority, key).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(ca.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    (folder / "registry.crt").write_bytes(leaf.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "registry.key").touch(mode=0o600)
    (folder / "registry.key").write_bytes(private)
    done.write_text(" ".join(names))


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return certificate.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(begin + _YEARS)
