"""How a connection to a host is opened: settings as OpenSSH has them (``ssh -G``), and host keys never accepted unseen."""

from __future__ import annotations

import logging
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection

from lodger.errors import ConnectionFailed, UsageError
from lodger.inventory import Host

# What goes wrong is said once, by our own errors.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

CONNECT = 15.0  # seconds for TCP, for the banner and for authentication, each


def resolve(host: Host) -> dict[str, list[str]]:
    """Return what ``ssh -G`` says of ``host``: option name in lower case -> its values in order.

    The host file's ``ssh`` settings go in as ``-o`` options, so they win over ``~/.ssh/config`` as a flag would.
    Raises UsageError when there is no OpenSSH client or it rejects the settings.
    """
    ssh = host.ssh
    options = {
        "User": ssh.user,
        "Port": ssh.port,
        "IdentityFile": ssh.identity_file,
        "UserKnownHostsFile": ssh.known_hosts_file,
    }
    given = [word for name, value in options.items() if value is not None for word in ("-o", f'{name}="{value}"')]
    return _ask_openssh([*given, "--", host.address], host.name)


def _ask_openssh(arguments: list[str], host: str) -> dict[str, list[str]]:
    if shutil.which("ssh") is None:
        raise UsageError(
            "the OpenSSH client is missing", hint="install openssh-client; its settings are used as they are", host=host
        )
    answer = subprocess.run(["ssh", "-G", *arguments], capture_output=True, text=True, timeout=30, check=False)
    if answer.returncode != 0:
        raise UsageError("ssh does not accept the settings of this host", cause=answer.stderr.strip(), host=host)
    settings: dict[str, list[str]] = {}
    for line in answer.stdout.splitlines():
        name, _, value = line.partition(" ")
        settings.setdefault(name, []).append(value)
    return settings


class _Reject(paramiko.MissingHostKeyPolicy):
    """Refuse a host key that no known_hosts file has."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client
        raise ConnectionFailed(
            f"the host key of {hostname} is not known",
            cause=f"it offers {key.get_name()} SHA256:{_fingerprint(key)}",
            hint=f"compare it with one read on the machine itself, then: ssh-keyscan {hostname} >> ~/.ssh/known_hosts",
        )


def _fingerprint(key: paramiko.PKey) -> str:
    import base64  # noqa: PLC0415  only the error path needs these
    import hashlib  # noqa: PLC0415  only an error shows it

    return base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


def unreached(error: Exception) -> tuple[str, str]:
    """Return cause and hint for a connection that ``error`` kept from being made, without the system's numbers."""
    if isinstance(error, socket.gaierror):
        known = "cannot be looked up now" if error.errno == socket.EAI_AGAIN else "is not known"
        return f"its name {known}", "check `address:` in the host file, and what ~/.ssh/config makes of it"
    cause = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return cause, "try `ssh -v` with the same settings"


def _connection(settings: Mapping[str, list[str]], host: str) -> Connection:
    """Return an unopened Fabric connection for resolved OpenSSH ``settings``, through its jump host where one is named."""
    one = {name: values[0] for name, values in settings.items()}
    keys = [str(path) for value in settings.get("identityfile", []) if (path := Path(value).expanduser()).exists()]
    gateway: Connection | str | None = one.get("proxycommand", "none")
    if gateway == "none":
        gateway = None
    jump = one.get("proxyjump", "none")
    if jump != "none":
        before, _, last = jump.rpartition(",")
        words = (["-J", before] if before else []) + ["--", f"ssh://{last}" if ":" in last else last]
        gateway = _connection(_ask_openssh(words, host), host)
    connection = Connection(
        one["hostname"],
        user=one["user"],
        port=int(one["port"]),
        gateway=gateway,
        connect_timeout=CONNECT,
        config=Config(lazy=True),  # nothing is read from ssh_config by Fabric, which ignores Include: ssh -G has spoken
        connect_kwargs={
            "key_filename": keys,
            "allow_agent": one.get("identitiesonly", "no") == "no",
            "look_for_keys": False,
            "banner_timeout": CONNECT,
            "auth_timeout": CONNECT,
            "transport_factory": _undelayed,
        },
    )
    client = connection.client
    for option in ("globalknownhostsfile", "userknownhostsfile"):
        for name in shlex.split(one.get(option, "")):
            path = Path(name).expanduser()
            if path.is_file():
                client.load_system_host_keys(str(path))
    client.set_missing_host_key_policy(_Reject())
    return connection


def _undelayed(stream: Any, **options: Any) -> paramiko.Transport:
    """Return a transport that sends at once: left to TCP, a short message waits up to 40 ms for the answer to the last one."""
    if isinstance(stream, socket.socket):  # and not the channel of a jump host
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return paramiko.Transport(stream, **options)


def _opened(host: Host) -> Connection:
    """Return an open connection; raise ConnectionFailed with the reason as OpenSSH's users know it."""
    settings = resolve(host)
    target = f"{settings['user'][0]}@{settings['hostname'][0]}:{settings['port'][0]}"
    connection = _connection(settings, host.name)
    try:
        connection.open()
    except ConnectionFailed as error:
        error.host = host.name
        raise
    except paramiko.BadHostKeyException as error:
        raise ConnectionFailed(
            "the host key has changed, or this is another machine",
            cause=f"expected {error.expected_key.get_name()} SHA256:{_fingerprint(error.expected_key)}, "
            f"got SHA256:{_fingerprint(error.key)}",
            hint="find out why before anything else; if the machine was reinstalled, remove the old key with ssh-keygen -R",
            host=host.name,
        ) from error
    except (paramiko.AuthenticationException, paramiko.PasswordRequiredException) as error:
        raise ConnectionFailed(
            f"{target} does not accept our key",
            cause=str(error),
            hint="try `ssh -v` with the same settings",
            host=host.name,
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        cause, hint = unreached(error)
        raise ConnectionFailed(f"{target} cannot be reached", cause=cause, hint=hint, host=host.name) from error
    connection.transport.packetizer.REKEY_BYTES = pow(2, 40)  # paramiko stalls on re-keying during large transfers
    return connection


_ahead: dict[str, tuple[Host, Future[Connection]]] = {}


def opened(host: Host) -> Connection:
    """Return an open connection, the one that :func:`open_ahead` began where it did; raise ConnectionFailed."""
    begun, opening = _ahead.pop(host.name, (None, None))
    return opening.result() if opening is not None and begun is host else _opened(host)


def open_ahead(hosts: Iterable[Host]) -> None:
    """Begin to connect to ``hosts`` while the rest of a task is still being loaded; ``opened`` waits for the end of it."""

    def work(host: Host, opening: Future[Connection]) -> None:
        try:
            opening.set_result(_opened(host))
        except BaseException as error:  # noqa: BLE001  it is raised where the connection is asked for
            opening.set_exception(error)

    for host in hosts:
        _ahead[host.name] = (host, Future())
        threading.Thread(target=work, args=_ahead[host.name], name=f"open-{host.name}", daemon=True).start()
