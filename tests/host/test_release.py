"""The current release is whole, is what systemd reads, and nobody but root can change it."""

from __future__ import annotations

import re

from testinfra.host import Host


def test_current_is_a_link_to_a_release(host: Host) -> None:
    target = host.check_output("readlink -e /opt/lodger/current")
    assert re.fullmatch(r"/opt/lodger/releases/[^/]+", target)


def test_systemd_reads_the_units_of_the_current_release(host: Host) -> None:
    compared = host.check_output(
        "find /opt/lodger/current/ -name 'lodger-*.service' | sort | while read -r unit; do "
        'cmp -s "$unit" "/etc/systemd/system/${unit##*/}" && echo "same ${unit##*/}" || echo "differs ${unit##*/}"; done'
    ).splitlines()
    assert compared, "the current release has no unit"
    assert [line for line in compared if not line.startswith("same ")] == []


def test_systemd_has_read_them_as_they_are(host: Host) -> None:
    shown = host.check_output("systemctl show 'lodger-*' -p Id,NeedDaemonReload")
    assert "NeedDaemonReload=yes" not in shown, shown


def test_manifest_names_the_git_revision(host: Host) -> None:
    manifest = host.check_output("cat /opt/lodger/current/manifest.json")
    # An installed tool, without a checkout, says that it does not know.
    assert re.search(r'"\w*revision"\s*:\s*"([0-9a-f]{40}\b|unknown")', manifest), manifest[:300]


def test_files_belong_to_root_and_only_root_can_write(host: Host) -> None:
    open_to_others = host.check_output(
        "for path in /opt/lodger /etc/lodger /var/lib/lodger /etc/systemd/system/lodger-*; do "
        '[ ! -e "$path" ] || find "$path" ! -type l \\( ! -user root -o -perm /022 \\) -print; done'
    )
    assert open_to_others.splitlines() == []
