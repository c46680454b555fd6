# What a deploy keeps true of files and units, for one ssh command; bench/peers.py adds the calls and runs it as root.
set -eu
changed=0

keep() { # PATH MODE CONTENT, the content in base64
    if [ "$(stat -c '%U %G 0%a' "$1" 2>&1)" = "root root $2" ] && printf %s "$3" | base64 -d | cmp -s - "$1"; then
        return
    fi
    printf %s "$3" | base64 -d >"$1.new"
    chown root:root "$1.new"
    chmod "$2" "$1.new"
    mv -f "$1.new" "$1"
    changed=$((changed + 1))
}

serve() { # UNIT
    if systemctl is-enabled -q "$1" && systemctl is-active -q "$1"; then
        return
    fi
    systemctl daemon-reload
    systemctl enable -q --now "$1"
    changed=$((changed + 1))
}
