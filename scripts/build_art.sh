#!/usr/bin/env bash
# Builds an environment with the client of OpenPipe ART and nip beside it, for `make test-art` and
# for ART programs that train on lm_server (docs/art.md).
#
#   scripts/build_art.sh [DIR]           DIR is .art-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although DIR is up to date
#
# It takes about two minutes and 0.9 GB, and has no torch: the server has that.
#
# Does nothing if DIR is up to date. It is an environment of its own because what ART requires
# (litellm) asks for openai<3, and constraints.txt has the newer one. The parts of nip that train on
# a server work with both; nip is installed here without its requirements, and those that these
# parts need are named below.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ART_VERSION=0.5.17
NAT_VERSION=1.9.0
use_environment .art-env art_constraints.txt "$@"
make_environment
echo "openpipe-art $ART_VERSION and what it requires ..."
pip_install -c "$CONSTRAINTS" "openpipe-art==$ART_VERSION" \
    aiohttp numpy psutil pyarrow pydantic pyyaml pytest pytest-asyncio pytest-timeout hypothesis
# NeMo Agent Toolkit's data models, for tests with its own objects; they need nothing more.
pip_install --no-deps "nvidia-nat-core==$NAT_VERSION" "nvidia-nat-openpipe-art==$NAT_VERSION"
echo "nip ..."
install_nip "" --no-deps
LITELLM_LOCAL_MODEL_COST_MAP=True "$DIR/bin/python" - <<'EOF'
from importlib.metadata import version

import art
import nip_core.jobs.ledger
import nip_core.jobs.openai_backend
from nat.data_models import finetuning
from nat.plugins.openpipe import config

print(f"openpipe-art {version('openpipe-art')}, openai {version('openai')}")
EOF
note_environment
