#!/bin/sh
# The images that do not depend on the engine's code: the real router, the CUDA base of the engine, a colleague's notebook.
. /lab/image/docker.sh

docker import /base.tar base:latest
mkdir -p /run/router/usr/lib/python3/dist-packages /run/cuda/usr/local/cuda/lib64 /run/cuda/opt/nvidia
cp -r /router/. /run/router/usr/lib/python3/dist-packages
layer lmsysorg/sglang-router:v0.2.4 base /run/router 'ENTRYPOINT ["python3","-m","sglang_router.launch_router"]'

# What makes the real image 17 GiB stands in as a few incompressible megabytes, so that a pull takes a moment and shows progress.
head -c 16000000 /dev/urandom > /run/cuda/usr/local/cuda/lib64/libcublasLt.so
printf '#!/bin/sh\nexec "$@"\n' > /run/cuda/opt/nvidia/nvidia_entrypoint.sh
chmod +x /run/cuda/opt/nvidia/nvidia_entrypoint.sh
layer nvidia/cuda:base base /run/cuda

for image in lmsysorg/sglang-router:v0.2.4 nvidia/cuda:base; do push $image; done
finish
