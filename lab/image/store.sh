#!/bin/sh
# Builds the container images of the lab with a Docker daemon and a registry of its own, inside a container of the twin image.
# Leaves in /store: registry/ (all that a twin may pull), docker/ (what a new twin has already), digests.json, log.
set -eu
exec >/store/log 2>&1
set -x
mkdir -p /store/docker /store/registry
cat > /run/registry.yml <<'END'
version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: /store/registry}}
http: {addr: "127.0.0.1:5000"}
END
ip link set lo up
/usr/lib/twin/docker-registry serve /run/registry.yml &
dockerd --data-root /store/docker --bridge=none --iptables=false --exec-opt native.cgroupdriver=cgroupfs >/store/dockerd.log 2>&1 &
daemon=$!
for _ in $(seq 100); do docker version >/dev/null 2>&1 && curl -sf http://127.0.0.1:5000/v2/ >/dev/null && break; sleep 0.1; done

# layer NEW PARENT FOLDER [CHANGE ...]: an image that is PARENT with the files of FOLDER laid over it.
layer() {
    new=$1 parent=$2 folder=$3
    shift 3
    container=$(docker create --network none "$parent" true)
    tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@1700000000 --exclude=__pycache__ -cf - . | docker cp - "$container":/
    for change; do set -- "$@" --change "$change"; shift; done
    docker commit "$@" "$container" "$new" >/dev/null
    docker rm "$container" >/dev/null
}

docker import /base.tar base:latest

# What makes the real image 17 GiB stands in as a few incompressible megabytes, so that a pull takes a moment and shows progress.
mkdir -p /run/cuda/usr/local/cuda/lib64 /run/cuda/opt/nvidia
head -c 16000000 /dev/urandom > /run/cuda/usr/local/cuda/lib64/libcublasLt.so
printf '#!/bin/sh\nexec "$@"\n' > /run/cuda/opt/nvidia/nvidia_entrypoint.sh
chmod +x /run/cuda/opt/nvidia/nvidia_entrypoint.sh
layer cuda base /run/cuda

engine=/run/engine/sgl-workspace/engine
mkdir -p $engine /run/engine/usr/local/bin
[ ! -d /lab/engine ] || cp -r /lab/engine/. $engine
printf '#!/bin/sh\nexec python3 -m sglang "$@"\n' > /run/engine/usr/local/bin/sglang
chmod +x /run/engine/usr/local/bin/sglang
# engine TAG PARENT CUDA: the engine's image, with the environment that NVIDIA's images bring.
engine() {
    layer "$1" "$2" /run/engine \
        "ENV PYTHONPATH=/sgl-workspace/engine PYTHONUNBUFFERED=1 CUDA_VERSION=$3.2 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility" \
        "ENV NVIDIA_REQUIRE_CUDA=cuda>=$3" "WORKDIR /sgl-workspace" 'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]' 'CMD ["/bin/bash"]'
}
push() {
    docker tag "$1" "127.0.0.1:5000/$1"
    docker push -q "127.0.0.1:5000/$1"
    digest=$(curl -sfI -H 'Accept: application/vnd.docker.distribution.manifest.v2+json' \
        "http://127.0.0.1:5000/v2/${1%:*}/manifests/${1##*:}" | tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p')
    printf '%s "%s": "%s"' "${comma:-}" "$1" "$digest" >> /run/digests
    comma=,
}
engine lmsysorg/sglang:v0.5.19-cu129 cuda 12.9
engine lmsysorg/sglang:v0.5.20 cuda 13.0
mkdir -p /run/router/usr/lib/python3/dist-packages
cp -r /router/. /run/router/usr/lib/python3/dist-packages
layer lmsysorg/sglang-router:v0.2.4 base /run/router 'ENTRYPOINT ["python3","-m","sglang_router.launch_router"]'
for image in lmsysorg/sglang:v0.5.19-cu129 lmsysorg/sglang:v0.5.20 lmsysorg/sglang-router:v0.2.4; do push $image; done

# The neighbours' images: a colleague's own, and the engine as it was when somebody started it by hand.
mkdir -p /run/notebook/opt/notebook
cp /lab/gpu/gpu_service.py /run/notebook/opt/notebook/notebook.py
layer colleague/notebook:2024.1 base /run/notebook
engine docker.m.daocloud.io/lmsysorg/sglang:v0.5.19-cu129 base 12.9
for image in $(docker images --format '{{.Repository}}:{{.Tag}}'); do
    case $image in colleague/*|docker.m.daocloud.io/*|base:*) ;; *) docker rmi "$image" >/dev/null ;; esac
done
docker rmi base:latest
kill $daemon
wait $daemon || true
rm -rf /store/docker/runtimes /store/docker/tmp
echo "{$(cat /run/digests)}" > /store/digests.json
