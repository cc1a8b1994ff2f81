"""Makes the keys of a deployment: an authority, the SuperLink's certificate, a key for each site.

python make_certificates.py keys --host superlink.example.org --site north --site south
"""

import argparse
import ipaddress
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CURVE = ec.SECP384R1()  # one of the curves Flower accepts for its SuperNodes


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read; an existing file is never overwritten."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def certificate(
    subject: str, key: ec.EllipticCurvePublicKey, issuer: str, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ a little
        .not_valid_after(now + timedelta(days=days))
    )


AUTHORITY = "fedraw example authority"


def make_authority(folder: Path, days: int) -> None:
    """Write ca.pem, ca.key, which signs certificates, and superexec.secret."""
    authority = ec.generate_private_key(CURVE)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        certificate(AUTHORITY, authority.public_key(), AUTHORITY, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority, hashes.SHA384())
    )
    write_secret(folder / "ca.key", private_pem(authority))
    (folder / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
    write_secret(folder / "superexec.secret", secrets.token_bytes(32))


def make_superlink_keys(folder: Path, hosts: list[str], days: int) -> None:
    """Write superlink.pem and superlink.key, signed by ca.key."""
    authority = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    server = ec.generate_private_key(CURVE)
    signed = (
        certificate("superlink", server.public_key(), AUTHORITY, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([address(host) for host in hosts]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(authority, hashes.SHA384())
    )
    write_secret(folder / "superlink.key", private_pem(server))
    (folder / "superlink.pem").write_bytes(signed.public_bytes(Encoding.PEM))


def make_site_key(folder: Path, site: str) -> None:
    """Write <site>.key for the site, and <site>.pub for the SuperLink."""
    key = ec.generate_private_key(CURVE)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_secret(folder / f"{site}.key", pem)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / f"{site}.pub").write_bytes(public + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", action="append", default=[], help="name or IP of the SuperLink")
    parser.add_argument("--site", action="append", default=[], help="a site that gets a key")
    parser.add_argument("--days", type=int, default=365, help="how long the certificates are valid")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "ca.pem").exists():
        make_authority(folder, arguments.days)
    if not (folder / "superlink.pem").exists():
        make_superlink_keys(folder, ["localhost", "127.0.0.1", *arguments.host], arguments.days)
    for site in arguments.site:
        if (folder / f"{site}.key").exists():
            print(f"{site} has a key already, which is not changed")
        else:
            make_site_key(folder, site)


if __name__ == "__main__":
    main()
