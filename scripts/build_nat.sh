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
# Does nothing if DIR was built by this very script with these very constraints. It is 1.8.0, as
# the command `nat finetune` of 1.9.0 ends in a RecursionError whatever is configured. nip is
# installed without its requirements, as in build_art.sh; so is the toolkit's LangChain plug-in,
# which requires the clients of eight providers; of those of evaluations, aioboto3 is left out.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
DIR="${1:-$ROOT/.nat-env}"
PYTHON="${PYTHON:-python3}"
PIP_OPTIONS="${PIP_OPTIONS:-}"
ART_VERSION=0.5.17
NAT_VERSION=1.8.0
CONSTRAINTS="$ROOT/scripts/nat_constraints.txt"
STAMP="$DIR/.built"

digest() {
    cat "${BASH_SOURCE[0]}" "$CONSTRAINTS" |
        "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), sys.version)'
}
WANTED="$(digest) $ROOT"
if [ -z "${REBUILD:-}" ] && [ -x "$DIR/bin/python" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$WANTED" ]; then
    echo "$DIR is up to date"
    exit 0
fi
"$PYTHON" -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), f"nip needs Python 3.11 to 3.13, this is {sys.version.split()[0]}; set PYTHON=..."'
if [ -e "$DIR" ] && [ ! -f "$DIR/pyvenv.cfg" ] && [ -n "$(ls -A "$DIR")" ]; then
    echo "$DIR exists and is no virtual environment; remove it or name another directory" >&2
    exit 1
fi

"$PYTHON" -m venv --clear "$DIR"
echo '*' > "$DIR/.gitignore"
# PIP_OPTIONS is meant to be split into words.
# shellcheck disable=SC2086
pip_install() {
    "$DIR/bin/python" -m pip install --quiet --quiet --disable-pip-version-check $PIP_OPTIONS "$@"
}
echo "nvidia-nat $NAT_VERSION, openpipe-art $ART_VERSION and what they require ..."
pip_install -c "$CONSTRAINTS" "openpipe-art==$ART_VERSION" \
    "nvidia-nat-core==$NAT_VERSION" "nvidia-nat-eval==$NAT_VERSION" datasets openpyxl \
    "nvidia-nat-openpipe-art==$NAT_VERSION" "nvidia-nat-opentelemetry==$NAT_VERSION" \
    langchain langchain-classic langchain-core langchain-openai langgraph langsmith pyopenssl \
    aiohttp numpy psutil pyarrow pydantic pyyaml pytest pytest-asyncio pytest-timeout hypothesis
pip_install --no-deps \
    "nvidia-nat-langchain==$NAT_VERSION" "nvidia-nat-profiler==$NAT_VERSION"
echo "nip and its example ..."
pip_install --no-deps -e "$ROOT" -e "$ROOT/docs/examples/nemo"
LITELLM_LOCAL_MODEL_COST_MAP=True "$DIR/bin/python" - <<'EOF'
from importlib.metadata import version

import nip_core.fine_tuning.art_adapter
import nip_core.fine_tuning.nat_plugin
import nip_nemo_example

print(f"nvidia-nat-core {version('nvidia-nat-core')}, openpipe-art {version('openpipe-art')}")
EOF
echo "$WANTED" > "$STAMP"
