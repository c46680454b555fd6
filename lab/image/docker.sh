# Read by stock.sh and engine.sh, which build container images inside a container of the twin image with no network.
# Starts a Docker daemon and a registry over the folders in /store; everything is logged in /store/log.
set -eu
exec >>/store/log 2>&1
set -x
cat > /run/registry.yml <<'END'
version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: /store/registry}}
http: {addr: "127.0.0.1:5000"}
END
ip link set lo up
mkdir -p /store/docker /store/registry
/usr/lib/twin/docker-registry serve /run/registry.yml &
dockerd --data-root /store/docker --bridge=none --iptables=false --exec-opt native.cgroupdriver=cgroupfs >/run/dockerd.log 2>&1 &
daemon=$!
for _ in $(seq 300); do
    if docker version && curl -sf http://127.0.0.1:5000/v2/; then break; fi >/dev/null 2>&1
    sleep 0.1
done

# layer NEW PARENT FOLDER [CHANGE ...]: an image that is PARENT with the files of FOLDER laid over it, its Python compiled:
# else every new container would do that at its start. By hash, for the files get another date.
layer() {
    new=$1 parent=$2 folder=$3
    shift 3
    find "$folder" -name __pycache__ -prune -exec rm -r {} +
    python3 -m compileall -q --invalidation-mode unchecked-hash "$folder"
    container=$(docker create --network none "$parent" true)
    tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@1700000000 -cf - . | docker cp - "$container":/
    for change; do set -- "$@" --change "$change"; shift; done
    docker commit "$@" "$container" "$new"
    docker rm "$container"
}

# push IMAGE: into the registry.
push() {
    docker tag "$1" "127.0.0.1:5000/$1"
    docker push -q "127.0.0.1:5000/$1"
    docker rmi "127.0.0.1:5000/$1"
}

# digest_of IMAGE: under which the registry knows it.
digest_of() {
    curl -sfI -H 'Accept: application/vnd.docker.distribution.manifest.v2+json' \
        "http://127.0.0.1:5000/v2/${1%:*}/manifests/${1##*:}" | tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p'
}

finish() {
    kill $daemon
    wait $daemon || true
    rm -rf /store/docker/runtimes /store/docker/tmp
}
