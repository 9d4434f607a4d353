#!/usr/bin/env bash
# Builds an environment with NVIDIA's NeMo Agent Toolkit, OpenPipe ART's client and nip beside them,
# for `make test-nat` and for `nat finetune` on lm_server (docs/nemo.md).
#
#   scripts/build_nat.sh [DIR]           DIR is .nat-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although DIR is up to date
#
# It takes about five minutes and 1.3 GB, and has no torch: the server has that.
#
# Does nothing if DIR is up to date. It is 1.8.0, as the command `nat finetune` of 1.9.0 ends in a
# RecursionError whatever is configured. nip is installed without its requirements, as in
# build_art.sh; so is the toolkit's LangChain plug-in, which requires the clients of eight providers;
# of those of evaluations, aioboto3 is left out.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ART_VERSION=0.5.17
NAT_VERSION=1.8.0
use_environment .nat-env nat_constraints.txt "$@"
make_environment
echo "nvidia-nat $NAT_VERSION, openpipe-art $ART_VERSION and what they require ..."
pip_install -c "$CONSTRAINTS" "openpipe-art==$ART_VERSION" \
    "nvidia-nat-core==$NAT_VERSION" "nvidia-nat-eval==$NAT_VERSION" datasets openpyxl \
    "nvidia-nat-openpipe-art==$NAT_VERSION" "nvidia-nat-opentelemetry==$NAT_VERSION" \
    langchain langchain-classic langchain-core langchain-openai langgraph langsmith pyopenssl \
    aiohttp numpy psutil pyarrow pydantic pyyaml pytest pytest-asyncio pytest-timeout hypothesis
pip_install --no-deps \
    "nvidia-nat-langchain==$NAT_VERSION" "nvidia-nat-profiler==$NAT_VERSION"
echo "nip and its example ..."
install_nip "" --no-deps -e "$ROOT/docs/examples/nemo"
LITELLM_LOCAL_MODEL_COST_MAP=True "$DIR/bin/python" - <<'EOF'
from importlib.metadata import version

import nip_by_hand.fine_tuning.art_adapter
import nip_by_hand.fine_tuning.nat_plugin
import nip_nemo_example

print(f"nvidia-nat-core {version('nvidia-nat-core')}, openpipe-art {version('openpipe-art')}")
EOF
note_environment
