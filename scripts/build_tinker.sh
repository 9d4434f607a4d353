#!/usr/bin/env bash
# Builds an environment with Tinker's SDK, its cookbook and nip, for `make test-tinker`: nip's server
# is then asked by them as they are published, and the cookbook's loop plays nip's games.
#
#   scripts/build_tinker.sh [DIR]        DIR is .tinker-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip, for example an index with CPU builds of torch
#   REBUILD=1            build again although DIR is up to date
#
# It takes some minutes and 1.5 GB, most of it torch, which the cookbook's losses compute with.
#
# Does nothing if DIR is up to date. The cookbook requires tml-renderers 0.4.1 or later, which the
# package index does not have: two model families alone need it, so the cookbook is installed without
# its requirements, after them.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
SDK_VERSION=0.38.0
COOKBOOK_VERSION=0.6.1
use_environment .tinker-env tinker_constraints.txt "$@"
make_environment
echo "tinker $SDK_VERSION and what tinker-cookbook $COOKBOOK_VERSION requires ..."
pip_install -c "$CONSTRAINTS" "tinker==$SDK_VERSION" torch transformers datasets aiohttp anyio \
    blobfile chz cloudpickle huggingface_hub numpy pillow pydantic pyrage rich safetensors termcolor \
    tiktoken tqdm sympy pylatexenc math-verify scipy \
    pytest pytest-asyncio pytest-timeout hypothesis psutil
pip_install --no-deps "tinker-cookbook==$COOKBOOK_VERSION"
echo "nip ..."
install_nip "" -c "$CONSTRAINTS"
"$DIR/bin/python" - <<'EOF'
from importlib.metadata import version

import tinker_cookbook.recipes.sl_loop

print("tinker", version("tinker"), "tinker-cookbook", version("tinker-cookbook"))
EOF
note_environment
