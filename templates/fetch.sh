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
plan=$home/plan log=$home/log
lanes=6        # files at a time
patience=5     # failures in a row, at each source, after which a file is given up

# On a busy machine every process that is begun costs: what happens for each file does with few.
say() {
    text=${3:-}
    [ -z "$text" ] || text=$(printf '%s' "$text" | tr '\n\t' '  ' | cut -c1-400)
    printf '%s\t%s\t%s\n' "$1" "$2" "$text" >> "$log"
}
value() { sed -n "/^\$/q;s/^#$1$tab//p" "$plan"; }
fail() { say end 0 "$1"; exit 1; }
short() { printf %.19s "$1"; }
size_of() { stat -c %s -- "$1" 2>/dev/null || echo 0; }

# Whether a path below the folder is reached without a symbolic link.
inside() { [ "$(realpath -m -- "$target/$1")" = "$target/$1" ]; }

# Set key, size, hash, kind, path and urls of file N.
file() {
    IFS=$tab read -r key size hash path urls <<LINE
$(sed -n "$1{p;q}" "$home/files")
LINE
    kind=${hash%%:*}
}

# Set got to the hash of a file ($2) as a hub of this kind ($1) reckons it. Others on this machine go first.
hash_of() {
    case $1 in
    git) got=$({ printf 'blob %s\0' "$(size_of "$2")"; cat -- "$2"; } | sha1sum) ;;
    *) got=$(if command -v openssl > /dev/null; then exec nice openssl dgst -sha256 -r; else exec nice sha256sum; fi < "$2") ;;
    esac
    got=${got%% *}
}

# Whether our record has the file at $1 with the size $2 and the time of change $3, whatever its hash.
recorded() {
    path=$1 awk -F '\t' -v size="$2" -v time="$3" '$2 == size && $3 == time && $4 == ENVIRON["path"] { ours = 1 } END { exit !ours }' \
        "$stage/manifest" "$stage/adopted" 2> /dev/null
}

check() {
    file "$1"
    if [ ! -e "$target/$path" ] && [ ! -L "$target/$path" ]; then
        [ "$rehash" = no ] || { : > "$stage/$key.bad"; say error "$1" "$path is missing"; exit 1; }
        return
    fi
    inside "$path" && [ -f "$target/$path" ] || { say error "$1" "$path is no plain file of this folder"; exit 1; }
    have=$(size_of "$target/$path") time=$(stat -c %Y -- "$target/$path")
    if [ "$rehash" = no ]; then
        if grep -sFqx -- "$hash$tab$have$tab$time$tab$path" "$stage/manifest" "$stage/adopted" ||
            { [ "$kind" = none ] && [ "$have" = "$size" ] && recorded "$path" "$have" "$time"; }; then
            : > "$stage/$key.kept"
            say kept "$1"
            return
        fi
    fi
    got="$have bytes"
    if [ "$have" = "$size" ] && [ "$kind" != none ]; then
        say check "$1"
        hash_of "$kind" "$target/$path"
        got=$kind:$got
        if [ "$got" = "$hash" ]; then
            [ "$rehash" = yes ] || printf '%s\n' "$hash$tab$have$tab$time$tab$path" >> "$stage/adopted"
            : > "$stage/$key.kept"
            say kept "$1"
            return
        fi
    fi
    if [ "$rehash" = yes ]; then
        : > "$stage/$key.bad"
        say error "$1" "$path has changed: it has $(short "$got"), the manifest says $(short "$hash") and $size bytes"
        exit 1
    fi
    [ "$replace" = yes ] || recorded "$path" "$have" "$time" ||
        { say error "$1" "$path is there with other content: it has $(short "$got"), the hub says $(short "$hash") and $size bytes"; exit 1; }
}

# Ask one URL for what is missing of the file, of which there are `have` bytes; set `have` anew, and `why` when that was not all.
pull() {
    part=$stage/$key.part head=$stage/$key.head said=$stage/$key.said
    before=$have why='' lost=no pause=0
    # The address goes in by standard input: arguments are for everybody to read. ulimit stops a body without end.
    code=$(ulimit -f $((size / 512 + 128)) && printf 'url = "%s"\n' "$1" |
        curl --config - -sS -f -g -L --proto =http,https --proto-redir =http,https --max-redirs 5 -A lodger -C - -o "$part" -D "$head" \
            -w '%{http_code}' --connect-timeout 15 --speed-limit 1024 --speed-time 30 --max-filesize "$size" 2> "$said")
    left=$?
    have=$(size_of "$part")
    case $left in
    0) [ "$have" = "$size" ] || why="the body ends after $have of $size bytes" ;;
    22)
        why="HTTP $code"
        pause=$(tr -d '\r' < "$head" | sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]\{1,6\}\)$/\1/p' | tail -n 1)
        case $code in 401 | 403 | 404 | 410) lost=yes ;; 416) discard; why="the file there ends before byte $before" ;; esac
        ;;
    23)
        say error "$2" "$path cannot be written: $(df -Ph "$stage" | awk 'NR == 2 { print $4 }') are free in $target; what is there is kept"
        exit 255
        ;;
    33)
        # It answers a question for the rest with the whole: keeping what is there is no use.
        discard
        say note "$2" "$path: the server cannot go on where it stopped, it is fetched from its beginning"
        [ "$before" -gt 0 ] && { pull "$1" "$2"; return; }
        why="the server ignores the range"
        ;;
    63 | 153) discard; why="the body is longer than the $size bytes of the listing" ;;
    *) why=$(tail -n 1 "$said" | cut -c1-200) ;;
    esac
    # What came in and stays is a reason to go on trying.
    [ $((have - before)) -lt 65536 ] || tries=0
}

# Throw away what is there of the file. A source that makes us do so again and again is given up, however much it sends.
discard() {
    rm -f "$stage/$key.part"
    have=0 bad=$((bad + 1))
}

get() {
    file "$1"
    number=$1 part=$stage/$key.part tries=0 bad=0 have=0
    if [ -f "$stage/$key.ok" ]; then
        say "done" "$number"
        return
    fi
    say get "$number"
    [ ! -f "$part" ] || have=$(size_of "$part")
    old_ifs=$IFS IFS=$tab
    # shellcheck disable=SC2086  # split at tabs, on purpose
    set -- $urls
    IFS=$old_ifs
    while [ $# -gt 0 ]; do
        [ "$size" != 0 ] || : > "$part"
        why='' lost=no pause=0
        [ -f "$part" ] && [ "$have" = "$size" ] || pull "$1" "$number"
        if [ "$have" -gt "$size" ]; then
            discard
            why="the body is longer than the $size bytes of the listing"
        elif [ -f "$part" ] && [ "$have" = "$size" ]; then
            hash_of "$kind" "$part"
            got=$kind:$got
            if [ "$kind" = none ] || [ "$got" = "$hash" ]; then
                mv -fT -- "$part" "$stage/$key.ok" || { say error "$number" "$path cannot be written"; exit 255; }
                sync "$stage/$key.ok" & # so that little is left to write at the end
                say "done" "$number"
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
            [ "$wait" -le 300 ] || wait=300
            sleep "$wait"
        fi
    done
    say error "$number" "$path could not be fetched: ${why:-no source gives it}"
    exit 1
}

place() {
    # From here on a power cut must find what was verified on the disk.
    sync -f "$stage" && : > "$stage/placing" || fail "the files could not be written to the disk"
    while IFS=$tab read -r key size hash path urls; do
        [ ! -f "$stage/$key.kept" ] || continue
        case $path in */*) mkdir -p -- "$target/${path%/*}" && inside "$path" ;; *) [ ! -L "$target/$path" ] ;; esac &&
            mv -fT -- "$stage/$key.ok" "$target/$path" || { say error 0 "$path could not be put in place"; exit 1; }
    done < "$home/files" || fail "not everything could be put in place"
    # What an earlier fetch brought, and nobody changed since, goes when it is no longer part of the model.
    if [ -f "$stage/manifest" ]; then
        cut -f 4 "$home/files" > "$stage/paths"
        sed '/^#/d' "$stage/manifest" | while IFS=$tab read -r hash size time path; do
            grep -Fqx -- "$path" "$stage/paths" || ! inside "$path" ||
                [ "$(stat -c "%F$tab%s$tab%Y" -- "$target/$path" 2> /dev/null)" != "regular file$tab$size$tab$time" ] ||
                { rm -f -- "$target/$path"; say note 0 "$path is no longer part of the model, and removed"; }
        done
    fi
    {
        sed -n '/^$/q;/^#\(model\|origin\|repository\|revision\|commit\)\t/p' "$plan"
        find "$target" -path "$stage" -prune -o -type f -printf '%P\t%s\t%T@\n' |
            awk -F '\t' -v OFS='\t' 'NR == FNR { hash[$4] = $3; next } $1 in hash { print hash[$1], $2, int($3), $1 }' "$home/files" - |
            while IFS=$tab read -r hash rest; do
                [ "$hash" != none: ] || { hash_of sha256 "$target/${rest##*"$tab"}"; hash=sha256:$got; }
                printf '%s\t%s\n' "$hash" "$rest"
            done
    } > "$stage/manifest.new" && sync "$stage/manifest.new" && mv -f "$stage/manifest.new" "$stage/manifest" ||
        fail "the manifest could not be written"
    find "$stage" -maxdepth 1 -type f ! -name manifest ! -name lock -delete
    sync -f "$stage"
}

case ${2:-} in
check | get) "$2" "$3"; exit 0 ;;
esac

tab=$(printf '\t')
root=$(realpath -m -- "$(value root)")
target=$root/$(value directory) rehash=$(value rehash) replace=$(value replace) share=$(value share)
stage=$target/.lodger
export tab target stage rehash replace
trap 'fail "it was stopped; what is there is kept"' TERM INT
say begin 0 "$(value id)"
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
sed '1,/^$/d' "$plan" > "$home/files"
# What a power cut may have spoilt is verified again.
boot=$(cat /proc/sys/kernel/random/boot_id)
[ "$boot" = "$(cat "$stage/boot" 2> /dev/null)" ] ||
    find "$stage" -maxdepth 1 -name '*.ok' -exec sh -c 'mv -f -- "$1" "${1%.ok}.part"' sh {} \;
echo "$boot" > "$stage/boot"
find "$stage" -maxdepth 1 \( -name '*.kept' -o -name '*.bad' \) -delete

count=0
while IFS=$tab read -r key size hash path urls; do
    count=$((count + 1))
    [ "$rehash" = no ] && [ ! -e "$target/$path" ] && [ ! -L "$target/$path" ] || echo $count
done < "$home/files" | xargs -r -P $lanes -n 1 sh "$0" "$home" check
checked=$?
if [ "$rehash" = yes ]; then
    if [ $checked != 0 ]; then
        # The manifest vouches no longer for what has changed: no file is of the year 1970.
        while IFS=$tab read -r key size hash path urls; do
            [ ! -f "$stage/$key.bad" ] || printf '%s\n' "$path"
        done < "$home/files" > "$stage/paths"
        awk -F '\t' -v OFS='\t' 'NR == FNR { bad[$0] = 1; next } !/^#/ && $4 in bad { $3 = 0 } { print }' \
            "$stage/paths" "$stage/manifest" > "$stage/manifest.new" && mv -f "$stage/manifest.new" "$stage/manifest"
        fail "$(wc -l < "$stage/paths") of $(wc -l < "$home/files") files are not as they were fetched"
    fi
    say end 0 ok
    exit 0
fi
[ $checked = 0 ] || fail "nothing was fetched"
number=0
while IFS=$tab read -r key rest; do
    number=$((number + 1))
    [ -f "$stage/$key.kept" ] || echo $number
done < "$home/files" | xargs -r -P $lanes -n 1 sh "$0" "$home" get || fail "not everything could be fetched; what is there is kept"
place
[ "$share" = - ] || { kill "$pinger"; printf 'url = "%s/.done"\n' "$share" | curl --config - -s -m 10 -o /dev/null; }
say end 0 ok
