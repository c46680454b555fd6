#!/bin/sh
# Brings the files of one plan into a model's folder. systemd runs it on the host as lodger-fetch-<model>; nobody else calls it.
#
#   fetch.sh HOME            HOME/plan says what; HOME/log gets a line for everything that happens: word, number of the file, text
#   fetch.sh HOME check N    one lane: is file N in place already?
#   fetch.sh HOME get N      one lane: fetch file N
#
# What is half there stands in <folder>/.lodger as <key>.part, and whole and verified as <key>.ok; killed at any moment, it goes on
# from there. Nothing is put in place before everything is verified.
set -uf
umask 022
export LC_ALL=C
home=$1
plan=$home/plan log=$home/log tab=$(printf '\t')
lanes=6        # files at a time
patience=5     # failures in a row, at each source, after which a file is given up

say() { printf '%s\t%s\t%s\n' "$1" "$2" "$(printf '%s' "$3" | tr '\n\t' '  ' | cut -c1-400)" >> "$log"; }
value() { sed -n "/^\$/q;s/^#$1$tab//p" "$plan"; }
fail() { say end 0 "$1"; exit 1; }
short() { printf %.19s "$1"; }
size_of() { stat -c %s -- "$1" 2>/dev/null || echo 0; }

root=$(value root) directory=$(value directory)
real=$(realpath -m -- "$root") || exit 1
target=$real/$directory
stage=$target/.lodger

# Whether a path below the folder is reached without a symbolic link.
inside() { [ "$(realpath -m -- "$target/$1")" = "$target/$1" ]; }

# Set key, size, hash, kind, path and urls of file N.
file() {
    IFS=$tab read -r key size hash path urls <<LINE
$(sed -n "/^\$/,\$p" "$plan" | sed -n "$(($1 + 1))p")
LINE
    kind=${hash%%:*}
}

# Print the hash of a file ($2) as a hub of this kind ($1) reckons it. Others on this machine go first.
hash_of() {
    case $1 in
    git) { printf 'blob %s\0' "$(size_of "$2")"; cat -- "$2"; } | sha1sum | cut -c1-40 ;;
    *) if command -v openssl > /dev/null; then nice openssl dgst -sha256 -r < "$2"; else nice sha256sum < "$2"; fi | cut -c1-64 ;;
    esac
}

# Whether our record has the file at $1 with the size $2 and the time of change $3, whatever its hash.
recorded() {
    path=$1 awk -F '\t' -v size="$2" -v time="$3" '$2 == size && $3 == time && $4 == ENVIRON["path"] { ours = 1 } END { exit !ours }' \
        "$stage/manifest" "$stage/adopted" 2> /dev/null
}

check() {
    file "$1"
    rm -f "$stage/$key.kept" "$stage/$key.bad"
    if [ ! -e "$target/$path" ] && [ ! -L "$target/$path" ]; then
        [ "$(value rehash)" = no ] || { : > "$stage/$key.bad"; say error "$1" "$path is missing"; exit 1; }
        return
    fi
    inside "$path" && [ -f "$target/$path" ] || { say error "$1" "$path is no plain file of this folder"; exit 1; }
    have=$(size_of "$target/$path") time=$(stat -c %Y -- "$target/$path")
    if [ "$(value rehash)" = no ]; then
        if grep -sFqx -- "$hash$tab$have$tab$time$tab$path" "$stage/manifest" "$stage/adopted" ||
            { [ "$kind" = none ] && [ "$have" = "$size" ] && recorded "$path" "$have" "$time"; }; then
            : > "$stage/$key.kept"
            say kept "$1" ''
            return
        fi
    fi
    got="$have bytes"
    if [ "$have" = "$size" ] && [ "$kind" != none ]; then
        say check "$1" ''
        got=$kind:$(hash_of "$kind" "$target/$path")
        if [ "$got" = "$hash" ]; then
            [ "$(value rehash)" = yes ] || printf '%s\n' "$hash$tab$have$tab$time$tab$path" >> "$stage/adopted"
            : > "$stage/$key.kept"
            say kept "$1" ''
            return
        fi
    fi
    if [ "$(value rehash)" = yes ]; then
        : > "$stage/$key.bad"
        say error "$1" "$path has changed: it has $(short "$got"), the manifest says $(short "$hash") and $size bytes"
        exit 1
    fi
    [ "$(value replace)" = yes ] || recorded "$path" "$have" "$time" ||
        { say error "$1" "$path is there with other content: it has $(short "$got"), the hub says $(short "$hash") and $size bytes"; exit 1; }
}

# Ask one URL for what is missing of the file; set `why` when that was not all.
pull() {
    part=$stage/$key.part head=$stage/$key.head said=$stage/$key.said
    have=$(size_of "$part") why='' lost=no pause=0
    # The address goes in by standard input: arguments are for everybody to read. ulimit stops a body without end.
    code=$(ulimit -f $((size / 512 + 128)) && printf 'url = "%s"\n' "$1" |
        curl --config - -sS -f -g -L --proto =http,https --proto-redir =http,https --max-redirs 5 -A lodger -C - -o "$part" -D "$head" \
            -w '%{http_code}' --connect-timeout 15 --speed-limit 1024 --speed-time 30 --max-filesize "$size" 2> "$said")
    left=$? now=$(size_of "$part")
    case $left in
    0) [ "$now" = "$size" ] || why="the body ends after $now of $size bytes" ;;
    22)
        why="HTTP $code"
        pause=$(tr -d '\r' < "$head" | sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]\{1,6\}\)$/\1/p' | tail -n 1)
        case $code in 401 | 403 | 404 | 410) lost=yes ;; 416) discard; why="the file there ends before byte $have" ;; esac
        ;;
    23)
        say error "$2" "$path cannot be written: $(df -Ph "$stage" | awk 'NR == 2 { print $4 }') are free in $target; what is there is kept"
        exit 255
        ;;
    33)
        # It answers a question for the rest with the whole: keeping what is there is no use.
        discard
        say note "$2" "$path: the server cannot go on where it stopped, it is fetched from its beginning"
        [ "$have" -gt 0 ] && { pull "$1" "$2"; return; }
        why="the server ignores the range"
        ;;
    63 | 153) discard; why="the body is longer than the $size bytes of the listing" ;;
    *) why=$(tail -n 1 "$said" | cut -c1-200) ;;
    esac
    rm -f "$head" "$said"
    # What came in and stays is a reason to go on trying.
    [ $(($(size_of "$part") - have)) -lt 65536 ] || tries=0
}

# Throw away what is there of the file. A source that makes us do so again and again is given up, however much it sends.
discard() {
    rm -f "$stage/$key.part"
    bad=$((bad + 1))
}

get() {
    file "$1"
    number=$1 part=$stage/$key.part tries=0 bad=0
    if [ -f "$stage/$key.ok" ] && [ "$(size_of "$stage/$key.ok")" = "$size" ]; then
        say "done" "$number" ''
        return
    fi
    say get "$number" ''
    old_ifs=$IFS IFS=$tab
    # shellcheck disable=SC2086  # split at tabs, on purpose
    set -- $urls
    IFS=$old_ifs
    while [ $# -gt 0 ]; do
        [ "$size" != 0 ] || : > "$part"
        why='' lost=no pause=0
        [ -f "$part" ] && [ "$(size_of "$part")" = "$size" ] || pull "$1" "$number"
        if [ -f "$part" ] && [ "$(size_of "$part")" -gt "$size" ]; then
            discard
            why="the body is longer than the $size bytes of the listing"
        elif [ -f "$part" ] && [ "$(size_of "$part")" = "$size" ]; then
            got=$kind:$(hash_of "$kind" "$part")
            if [ "$kind" = none ] || [ "$got" = "$hash" ]; then
                sync "$part" && mv -fT -- "$part" "$stage/$key.ok" || { say error "$number" "$path cannot be written"; exit 255; }
                say "done" "$number" ''
                return
            fi
            discard
            why="it has $(short "$got"), the hub says $(short "$hash")"
        fi
        tries=$((tries + 1))
        say retry "$number" "$path: $why"
        [ $tries -lt $((patience * $#)) ] && [ $bad -lt $((3 * $#)) ] || break
        # The next source at once; when all have failed, a pause, as long as the server asks for.
        url=$1
        shift
        [ $lost = yes ] || set -- "$@" "$url"
        if [ $# -gt 0 ] && [ $((tries % $#)) = 0 ]; then
            wait=$((1 << (tries / $#) - 1))
            [ "${pause:-0}" -le $wait ] || wait=$pause
            [ $wait -le 300 ] || wait=300
            sleep $wait
        fi
    done
    say error "$number" "$path could not be fetched: ${why:-no source gives it}"
    exit 1
}

place() {
    : > "$stage/placing"
    sed '1,/^$/d' "$plan" | while IFS=$tab read -r key size hash path urls; do
        [ ! -f "$stage/$key.kept" ] || continue
        case $path in */*) mkdir -p -- "$target/${path%/*}" ;; esac
        inside "$path" && mv -fT -- "$stage/$key.ok" "$target/$path" || { say error 0 "$path could not be put in place"; exit 1; }
    done || fail "not everything could be put in place"
    # What an earlier fetch brought, and nobody changed since, goes when it is no longer part of the model.
    if [ -f "$stage/manifest" ]; then
        sed '1,/^$/d' "$plan" | cut -f 4 > "$stage/paths"
        sed '/^#/d' "$stage/manifest" | while IFS=$tab read -r hash size time path; do
            grep -Fqx -- "$path" "$stage/paths" || ! inside "$path" ||
                [ "$(stat -c "%F$tab%s$tab%Y" -- "$target/$path" 2> /dev/null)" != "regular file$tab$size$tab$time" ] ||
                { rm -f -- "$target/$path"; say note 0 "$path is no longer part of the model, and removed"; }
        done
    fi
    {
        sed -n '/^$/q;/^#\(model\|origin\|repository\|revision\|commit\)\t/p' "$plan"
        sed '1,/^$/d' "$plan" | while IFS=$tab read -r key size hash path urls; do
            [ "$hash" != none: ] || hash=sha256:$(hash_of sha256 "$target/$path")
            printf '%s\t%s\t%s\n' "$hash" "$(stat -c "%s$tab%Y" -- "$target/$path")" "$path"
        done
    } > "$stage/manifest.new" && sync "$stage/manifest.new" && mv -f "$stage/manifest.new" "$stage/manifest" ||
        fail "the manifest could not be written"
    find "$stage" -maxdepth 1 -type f ! -name manifest ! -name lock -delete
    sync -f "$stage"
}

case ${2:-} in
check | get) "$2" "$3"; exit 0 ;;
esac

trap 'fail "it was stopped; what is there is kept"' TERM INT
say begin 0 "$(value id)"
share=$(value share)
if [ "$share" != - ]; then
    # The host that serves us stops when it hears nothing for long.
    ( while sleep 30; do printf 'url = "%s/"\n' "$share" | curl --config - -s -m 10 -o /dev/null; done ) &
    pinger=$!
fi
inside .lodger || fail "$target is reached through a symbolic link"
mkdir -p -m 700 -- "$stage" 2> "$home/said" || fail "$(tail -n 1 "$home/said")"
exec 9> "$stage/lock" 8> "${home%/*}/turn"
flock -w 20 9 || fail "another fetch works on $target"
flock -n 8 || { say wait 0 "another fetch of this host is at work"; flock 8; }
count=$(($(sed '1,/^$/d' "$plan" | wc -l)))

seq 1 $count | xargs -P $lanes -n 1 sh "$0" "$home" check
checked=$?
if [ "$(value rehash)" = yes ]; then
    if [ $checked != 0 ]; then
        # The manifest vouches no longer for what has changed: no file is of the year 1970.
        sed '1,/^$/d' "$plan" | while IFS=$tab read -r key size hash path urls; do
            [ ! -f "$stage/$key.bad" ] || printf '%s\n' "$path"
        done > "$stage/paths"
        awk -F '\t' -v OFS='\t' 'NR == FNR { bad[$0] = 1; next } !/^#/ && $4 in bad { $3 = 0 } { print }' \
            "$stage/paths" "$stage/manifest" > "$stage/manifest.new" && mv -f "$stage/manifest.new" "$stage/manifest"
        fail "$(wc -l < "$stage/paths") of $count files are not as they were fetched"
    fi
    find "$stage" -maxdepth 1 -name '*.kept' -delete
    say end 0 ok
    exit 0
fi
[ $checked = 0 ] || fail "nothing was fetched"
number=0
sed '1,/^$/d' "$plan" | while IFS=$tab read -r key rest; do
    number=$((number + 1))
    [ -f "$stage/$key.kept" ] || echo $number
done | xargs -r -P $lanes -n 1 sh "$0" "$home" get || fail "not everything could be fetched; what is there is kept"
place
[ "$share" = - ] || { kill "$pinger"; printf 'url = "%s/.done"\n' "$share" | curl --config - -s -m 10 -o /dev/null; }
say end 0 ok
