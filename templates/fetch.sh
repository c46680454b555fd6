#!/bin/sh
# Brings the files of one plan into a model's folder. systemd runs it on the host as lodger-fetch-<model>; nobody else calls it.
#
#   fetch.sh HOME              HOME/plan says what; HOME/log gets a line for everything that happens: word, number of the file, text
#   fetch.sh HOME check KEY    one lane: is this file in place already?
#   fetch.sh HOME whole KEY    one lane: is what came of it the file?
#   fetch.sh HOME get KEY      one lane: fetch it
#
# What is half there stands in <folder>/.lodger as <key>.part, and whole, verified and on the disk as <key>.ok; killed at any moment,
# it goes on from there. Nothing is put in place before everything is verified. HOME/lock is held until the end, for who waits for it.
#
# The folder may be somebody else's, who can put a link in the place of anything in it while we work as root. So we stand in .lodger,
# which is ours alone, and name what is there without a path; and a file is put in its place from the very folder that it belongs in.
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

# Go to the folder of a path below ours, unless a symbolic link leads elsewhere.
enter() {
    case $1 in */*) cd -P -- "$target/${1%/*}" ;; *) cd -P -- "$target" ;; esac && [ "$(pwd -P)/${1##*/}" = "$target/$1" ]
}

# Set number, key, size, hash, kind, path, urls and part of a file.
file() {
    line=$(grep -n -m 1 "^$1$tab" "$home/files")
    number=${line%%:*}
    IFS=$tab read -r key size hash path urls <<LINE
${line#*:}
LINE
    kind=${hash%%:*} part=$key.part
}

# Set got to the hash of a file ($2) as a hub of this kind ($1) reckons it.
hash_of() {
    case $1 in
    git) got=$({ printf 'blob %s\0' "$(size_of "$2")"; cat -- "$2"; } | sha1sum) ;;
    *) got=$(if command -v openssl > /dev/null; then exec openssl dgst -sha256 -r; else exec sha256sum; fi < "$2") ;;
    esac
    got=${got%% *}
}

# Whether our record has the file at $1 with the size $2 and the time of change $3, whatever its hash.
recorded() {
    path=$1 awk -F '\t' -v size="$2" -v time="$3" '$2 == size && $3 == time && $4 == ENVIRON["path"] { ours = 1 } END { exit !ours }' \
        manifest adopted 2> /dev/null
}

check() {
    file "$1"
    if [ ! -e "$target/$path" ] && [ ! -L "$target/$path" ]; then
        [ "$rehash" = no ] || { : > "$key.bad"; say error "$number" "$path is missing"; exit 1; }
        return
    fi
    inside "$path" && [ -f "$target/$path" ] || { say error "$number" "$path is no plain file of this folder"; exit 1; }
    have=$(size_of "$target/$path") time=$(stat -c %Y -- "$target/$path")
    if [ "$rehash" = no ]; then
        if grep -sFqx -- "$hash$tab$have$tab$time$tab$path" manifest adopted ||
            { [ "$kind" = none ] && [ "$have" = "$size" ] && recorded "$path" "$have" "$time"; }; then
            : > "$key.kept"
            say kept "$number"
            return
        fi
    fi
    got="$have bytes"
    if [ "$have" = "$size" ] && [ "$kind" != none ]; then
        say check "$number"
        hash_of "$kind" "$target/$path"
        got=$kind:$got
        if [ "$got" = "$hash" ]; then
            [ "$rehash" = yes ] || printf '%s\n' "$hash$tab$have$tab$time$tab$path" >> adopted
            : > "$key.kept"
            say kept "$number"
            return
        fi
    fi
    if [ "$rehash" = yes ]; then
        : > "$key.bad"
        say error "$number" "$path has changed: it has $(short "$got"), the manifest says $(short "$hash") and $size bytes"
        exit 1
    fi
    if [ "$replace" = yes ] || recorded "$path" "$have" "$time"; then
        return
    elif [ "$kind" = none ] && [ "$have" = "$size" ]; then
        say error "$number" "$path is there and cannot be proved: it has the right size, and the hub gives no hash"
    else
        say error "$number" "$path is there with other content: it has $(short "$got"), the hub says $(short "$hash") and $size bytes"
    fi
    exit 1
}

# What curl's configuration on standard input names, for arguments are for everybody to read. It goes on with what is there.
ask() {
    curl --config - -sS -f -g -L -C - --proto =http,https --proto-redir =http,https --max-redirs 5 -A lodger \
        --connect-timeout 15 --speed-limit 1024 --speed-time 30 "$@"
}

# Ask one URL for what is missing of the file, of which there are `have` bytes; set `have` anew, and `why` when that was not all.
pull() {
    before=$have why='' lost=no pause=0
    # ulimit stops a body without end.
    code=$(ulimit -f $((size / 512 + 128)) &&
        printf 'url = "%s"\n' "$1" | ask -o "$part" -D "$key.head" -w '%{http_code}' --max-filesize "$size" 2> "$key.said")
    left=$?
    have=$(size_of "$part")
    case $left in
    0) [ "$have" = "$size" ] || why="the body ends after $have of $size bytes" ;;
    22)
        why="HTTP $code"
        pause=$(tr -d '\r' < "$key.head" | sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]\{1,6\}\)$/\1/p' | tail -n 1)
        case $code in 401 | 403 | 404 | 410) lost=yes ;; 416) discard; why="the file there ends before byte $before" ;; esac
        ;;
    23)
        say error "$number" "$path cannot be written: $(df -Ph . | awk 'NR == 2 { print $4 }') are free in $target; what is there is kept"
        exit 255
        ;;
    33)
        # It answers a question for the rest with the whole: keeping what is there is no use.
        discard
        say note "$number" "$path: the server cannot go on where it stopped, it is fetched from its beginning"
        [ "$before" -gt 0 ] && { pull "$1"; return; }
        why="the server ignores the range"
        ;;
    63 | 153) discard; why="the body is longer than the $size bytes of the listing" ;;
    *) why=$(tail -n 1 "$key.said" | cut -c1-200) ;;
    esac
    # What came in and stays is a reason to go on trying.
    [ $((have - before)) -lt 65536 ] || tries=0
}

# Throw away what is there of the file. A source that makes us do so again and again is given up, however much it sends.
discard() {
    rm -f "$part"
    have=0 bad=$((bad + 1))
}

# Whether what came, as many bytes as there should be, is the file; set `why` when it is not.
sound() {
    if [ "$kind" != none ]; then
        hash_of "$kind" "$part"
        [ "$kind:$got" = "$hash" ] || { discard; why="it has $(short "$kind:$got"), the hub says $(short "$hash")"; return 1; }
    fi
    sync "$part" && mv -fT -- "$part" "$key.ok" || { say error "$number" "$path cannot be written"; exit 255; }
    say "done" "$number"
}

whole() {
    bad=0
    file "${1%.part}"
    [ "$(size_of "$part")" != "$size" ] || sound || say retry "$number" "$path: $why"
}

get() {
    file "$1"
    tries=0 bad=0 have=0
    say get "$number"
    [ ! -f "$part" ] || have=$(size_of "$part")
    old_ifs=$IFS IFS=$tab
    # shellcheck disable=SC2086  # split at tabs, on purpose
    set -- $urls
    IFS=$old_ifs
    while [ $# -gt 0 ]; do
        [ "$size" != 0 ] || : > "$part"
        why='' lost=no pause=0
        [ -f "$part" ] && [ "$have" = "$size" ] || pull "$1"
        if [ "$have" -gt "$size" ]; then
            discard
            why="the body is longer than the $size bytes of the listing"
        elif [ -f "$part" ] && [ "$have" = "$size" ] && sound; then
            return
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

# Ask for all that is missing, each file at its first source, and print what curl is done with. It is one curl, so that a connection
# serves for many files; one of HTTP/2 would serve for all at once, and be slow far away. What fails here is left to `get`.
sweep() {
    largest=$(cut -f 2 "$home/files" | sort -n | tail -n 1) number=0
    while IFS=$tab read -r key size hash path url _; do
        number=$((number + 1))
        if [ -f "$key.ok" ]; then
            say "done" $number
        elif [ ! -f "$key.kept" ] && [ "$size" != 0 ] && { [ ! -f "$key.part" ] || [ "$(size_of "$key.part")" -lt "$size" ]; }; then
            printf 'url = "%s"\noutput = "%s.part"\n' "$url" "$key"
        fi
    done < "$home/files" | (
        ulimit -f $((largest / 512 + 128))
        # shellcheck disable=SC2069  # told on standard error, which no buffer holds back
        ask --no-show-error --http1.1 --parallel --parallel-max $lanes -w '%{stderr}%{filename_effective}\n' 2>&1 > /dev/null
    )
}

place() {
    # Written down before: after a kill half way, what is in place is known for ours, whether the hub gives a hash or not.
    find . -maxdepth 1 -name '*.ok' -printf '%f\t%T@\n' |
        awk -F '\t' -v OFS='\t' 'NR == FNR { time[$1] = int($2); next } ($1 ".ok") in time { print $3, $2, time[$1 ".ok"], $4 }' \
            - "$home/files" >> adopted && sync adopted || fail "the files could not be written to the disk"
    # While this is there, what is in place is of two revisions, as far as anybody knows: no deploy takes it.
    : > placing && sync placing || fail "the files could not be written to the disk"
    (
        here=
        while IFS=$tab read -r key size hash path urls; do
            [ ! -f "$stage/$key.kept" ] || continue
            folder=/${path%"${path##*/}"}
            if [ "$folder" != "$here" ]; then
                inside "$path" && mkdir -p -- "$target$folder" && enter "$path" || fail "$path could not be put in place"
                here=$folder
            fi
            mv -fT -- "$stage/$key.ok" "${path##*/}" || fail "$path could not be put in place"
        done < "$home/files"
    ) || exit 1
    # What an earlier fetch brought, and nobody changed since, goes when it is no longer part of the model.
    if [ -f manifest ]; then
        cut -f 4 "$home/files" > paths
        sed '/^#/d' manifest | while IFS=$tab read -r hash size time path; do
            if ! grep -Fqx -- "$path" paths && (
                enter "$path" && [ "$(stat -c "%F$tab%s$tab%Y" -- "${path##*/}")" = "regular file$tab$size$tab$time" ] &&
                    exec rm -f -- "${path##*/}"
            ) 2> /dev/null; then
                say note 0 "$path is no longer part of the model, and removed"
            fi
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
    } > manifest.new && sync manifest.new && rm -f placing && mv -f manifest.new manifest || fail "the manifest could not be written"
    find . -maxdepth 1 -type f ! -name manifest ! -name lock -delete
    sync . "$target"
}

case ${2:-} in
check | whole | get) "$2" "$3"; exit 0 ;;
esac

exec 7> "$home/lock"
flock 7
tab=$(printf '\t')
root=$(realpath -m -- "$(value root)")
target=$root/$(value directory) rehash=$(value rehash) replace=$(value replace) share=$(value share)
stage=$target/.lodger
export tab target stage rehash replace
trap 'fail "it was stopped; what is there is kept"' TERM INT
say begin 0 "$(value id)"
if [ "$share" != - ]; then
    export no_proxy='*' # the host that serves us is our neighbour, and the address a secret between the two
    # It stops when it hears nothing for long, and we when nobody fetches any more.
    ( while sleep 30 && kill -0 $$; do printf 'url = "%s/"\n' "$share" | curl --config - -s -m 10 -o /dev/null; done ) 7>&- &
    pinger=$!
fi
inside .lodger || fail "$target is reached through a symbolic link"
mkdir -p -m 700 -- "$stage" 2> "$home/said" || fail "$(tail -n 1 "$home/said")"
cd -P -- "$stage" && [ "$(pwd -P)" = "$stage" ] || fail "$target is reached through a symbolic link"
case $(stat -c '%u %a' .) in
"$(id -u) 700" | "$(id -u) 2700") ;;
*) fail "$stage is not ours: it belongs to $(stat -c '%U, mode %a' .); move it away" ;;
esac
exec 9> lock 8> "${home%/*}/turn"
flock -w 20 9 || fail "another fetch works on $target"
flock -n 8 || { say wait 0 "another fetch of this host is at work"; flock 8; }
sed '1,/^$/d' "$plan" > "$home/files"
find . -maxdepth 1 \( -name '*.kept' -o -name '*.bad' \) -delete

# Hashing what is there already takes all the processors it gets, so others go first; what comes in is hashed no faster than it comes.
while IFS=$tab read -r key size hash path urls; do
    [ "$rehash" = no ] && [ ! -e "$target/$path" ] && [ ! -L "$target/$path" ] || echo "$key"
done < "$home/files" | xargs -r -P $lanes -n 1 nice sh "$0" "$home" check
checked=$?
if [ "$rehash" = yes ]; then
    if [ $checked != 0 ]; then
        # The manifest vouches no longer for what has changed: no file is of the year 1970.
        while IFS=$tab read -r key size hash path urls; do
            [ ! -f "$key.bad" ] || printf '%s\n' "$path"
        done < "$home/files" > paths
        awk -F '\t' -v OFS='\t' 'NR == FNR { bad[$0] = 1; next } !/^#/ && $4 in bad { $3 = 0 } { print }' paths manifest > manifest.new &&
            mv -f manifest.new manifest
        fail "$(wc -l < paths) of $(wc -l < "$home/files") files are not as they were fetched"
    fi
    say end 0 ok
    exit 0
fi
[ $checked = 0 ] || fail "nothing was fetched"
sweep | xargs -r -P $lanes -n 1 sh "$0" "$home" whole
while IFS=$tab read -r key rest; do
    [ -f "$key.kept" ] || [ -f "$key.ok" ] || echo "$key"
done < "$home/files" | xargs -r -P $lanes -n 1 sh "$0" "$home" get || fail "not everything could be fetched; what is there is kept"
place
[ "$share" = - ] || { kill "$pinger"; printf 'url = "%s/.done"\n' "$share" | curl --config - -s -m 10 -o /dev/null; }
say end 0 ok
