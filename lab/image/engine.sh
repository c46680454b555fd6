#!/bin/sh
# The images with the simulated engine, on the stock; then everything that a new twin is to pull leaves its Docker folder.
. /lab/image/docker.sh

engine=/run/engine/sgl-workspace/engine
mkdir -p $engine /run/engine/usr/local/bin
[ ! -d /lab/engine ] || cp -r /lab/engine/. $engine
printf '#!/bin/sh\nexec python3 -m sglang "$@"\n' > /run/engine/usr/local/bin/sglang
chmod +x /run/engine/usr/local/bin/sglang

# engine IMAGE PARENT CUDA: with the environment that NVIDIA's images bring.
engine() {
    layer "$1" "$2" /run/engine \
        "ENV PYTHONPATH=/sgl-workspace/engine PYTHONUNBUFFERED=1 CUDA_VERSION=$3 NVIDIA_VISIBLE_DEVICES=all" \
        "ENV NVIDIA_REQUIRE_CUDA=cuda>=${3%.*} NVIDIA_DRIVER_CAPABILITIES=compute,utility" \
        "WORKDIR /sgl-workspace" 'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]' 'CMD ["/bin/bash"]'
}
engine lmsysorg/sglang:v0.5.19-cu129 nvidia/cuda:base 12.9.2
engine lmsysorg/sglang:v0.5.20 nvidia/cuda:base 13.0.3
for image in lmsysorg/sglang:v0.5.19-cu129 lmsysorg/sglang:v0.5.20; do push $image; done
listing=
for image in lmsysorg/sglang:v0.5.19-cu129 lmsysorg/sglang:v0.5.20 lmsysorg/sglang-router:v0.2.4; do
    listing="$listing${listing:+, }\"$image\": \"$(digest_of $image)\""
    docker rmi $image
done

# The neighbours' images: a colleague's own, and the engine as it was when somebody started it by hand.
mkdir -p /run/notebook/opt/notebook
cp /lab/gpu/gpu_service.py /run/notebook/opt/notebook/service.py
layer colleague/notebook:2024.1 base /run/notebook
engine docker.m.daocloud.io/lmsysorg/sglang:v0.5.19-cu129 base 12.9.2
docker rmi nvidia/cuda:base base:latest
finish
echo "{$listing}" > /store/digests.json
