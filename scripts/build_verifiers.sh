#!/usr/bin/env bash
# Builds an environment with verifiers, nip and the environment nip-verifiers, for `make
# test-verifiers` and for who would rather not have verifiers beside the rest (docs/verifiers.md).
#
#   scripts/build_verifiers.sh [DIR]     DIR is .verifiers-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although DIR is up to date
#
# It takes some minutes and 1.1 GB, and has no torch: nip's core needs none.
#
# Does nothing if DIR is up to date. The three install together. It is an environment of its own
# because verifiers asks for openai<3, and constraints.txt has the newer one.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
use_environment .verifiers-env verifiers_constraints.txt "$@"
make_environment
echo "verifiers, nip and what they require ..."
pip_install -c "$CONSTRAINTS" hatchling
install_nip graphs,figures -c "$CONSTRAINTS" -e "$ROOT/nip_verifiers" \
    pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis certifi
"$DIR/bin/python" -m pip check
"$DIR/bin/python" - <<'EOF'
from importlib.metadata import version

import nip_verifiers

print(f"verifiers {version('verifiers')}, openai {version('openai')}")
EOF
note_environment
