#!/bin/sh
# Turns the bare Debian base into what a lab host has installed: runs once, as root, in a container of the base image.
# Its mirror is the one that the base came from; Docker Compose v2 is a package of the release after this one.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/lab-build

for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    [ -f "$list" ] || continue
    case $list in
        *.sources) new=/etc/apt/sources.list.d/next.sources ;;
        *) new=/etc/apt/sources.list.d/next.list ;;
    esac
    sed -e '/security/d' -e 's/bookworm-updates//; s/bookworm/trixie/' "$list" > "$new"
done
printf 'Package: *\nPin: release n=trixie\nPin-Priority: 50\n' > /etc/apt/preferences.d/next
apt-get update -q
packages=$(grep -v '^#' /lab/image/packages)
apt-get install -qy --no-install-recommends $packages
apt-get install -qy --no-install-recommends docker-compose/trixie
cd /tmp && apt-get download -q docker-registry && dpkg-deb -x docker-registry_*.deb registry
install -D registry/usr/bin/docker-registry /usr/lib/twin/docker-registry
rm -r docker-registry_*.deb registry

for locale in de_DE zh_CN; do localedef -i $locale -f UTF-8 $locale.UTF-8; done
useradd -m -s /bin/bash -u 1000 -g operator operator
useradd -m -s /bin/bash -u 1001 colleague
systemctl mask -q getty@tty1.service console-getty.service
systemctl disable -q apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer
systemctl set-default -q multi-user.target

rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id /etc/apt/sources.list.d/next.* /etc/apt/preferences.d/next
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /usr/share/doc/* /usr/share/man/* /var/log/*.log
rm -f /usr/sbin/policy-rc.d /etc/dpkg/dpkg.cfg.d/lab-build
