#!/usr/bin/env bash
# NOT RUN: written beside build_vllm_cpu.sh, of which it is the counterpart, on a machine without a
# GPU. That pip finds all of it and that it fits together was checked, with the CPU build of torch.
#
# Builds an environment with vLLM for CUDA, for the engine `vllm` on a GPU. Point the server at it:
# NIP_VLLM=DIR/bin/vllm, or --option executable=DIR/bin/vllm.
#
#   scripts/build_vllm_cuda.sh [DIR]     DIR is .vllm-cuda in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip, for example an index of your own
#   REBUILD=1            build again although DIR is up to date
#   BITSANDBYTES=1       with vllm-bnb-plugin, for agents with quantization: bitsandbytes
#
# CUDA's libraries are packages that torch requires, so it takes gigabytes of disk. It needs a driver
# from 580 on (torch on the package index is built for CUDA 13.0) and, when it runs, a C compiler and
# Python.h: kernels are compiled when they are first used. `nip doctor` looks for all of that.
#
# Does nothing if DIR is up to date. It is an environment of its own because vLLM and Prefect need
# different versions of FastAPI. vLLM is of the version that the tests run, as its CPU build; an older
# one than 0.26 is refused by the server, a newer one is warned of.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
VLLM_VERSION=0.32.0
TORCH_VERSION=2.13.0
use_environment .vllm-cuda vllm_cuda_constraints.txt "$@"
if [ ! -e /dev/nvidiactl ] && [ ! -e /usr/lib/wsl/lib/libcuda.so.1 ]; then
    echo "there is no NVIDIA device here: without one scripts/build_vllm_cpu.sh is what runs" >&2
fi
make_environment
echo "torch $TORCH_VERSION ..."
pip_install -c "$CONSTRAINTS" "torch==$TORCH_VERSION"
echo "vllm $VLLM_VERSION and what it requires ..."
pip_install -c "$CONSTRAINTS" "vllm==$VLLM_VERSION"
if [ -n "${BITSANDBYTES:-}" ]; then
    echo "vllm-bnb-plugin ..."
    pip_install -c "$CONSTRAINTS" vllm-bnb-plugin
fi
"$DIR/bin/python" - <<'EOF'
# A build without CUDA is better noticed here than when the first model is loaded.
import torch

if torch.version.cuda is None:
    raise SystemExit(f"torch {torch.__version__} is no CUDA build: see PIP_OPTIONS")
print(f"torch {torch.__version__} for CUDA {torch.version.cuda}, {torch.cuda.device_count()} devices")
EOF
VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 "$DIR/bin/vllm" --version
note_environment
