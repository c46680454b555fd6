#!/bin/sh
# Makes the Debian base below the folder $1 slim: no documentation, and translations only where the lab tests with them.
set -eu
cd "$1"
cat > etc/dpkg/dpkg.cfg.d/slim <<'END'
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/de/*
path-include=/usr/share/locale/zh_CN/*
path-include=/usr/share/locale/locale.alias
END
find usr/share/locale -mindepth 1 -maxdepth 1 -type d ! -name de ! -name zh_CN -exec rm -r {} +
rm -rf usr/share/doc/* usr/share/man/* usr/share/info/* var/cache/apt/*.bin var/cache/apt/archives/*.deb var/lib/apt/lists/* var/log/*
