#!/usr/bin/env bash
# Builds an environment with inspect_ai and nip, for `make test-inspect` and for who would rather not
# have Inspect beside the rest (docs/inspect.md).
#
#   scripts/build_inspect.sh [DIR]       DIR is .inspect-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although DIR is up to date
#
# It takes some minutes and 0.9 GB, and has no torch: nip's core needs none.
#
# Does nothing if DIR is up to date. Inspect and nip install together, as the extra `inspect`. It is
# an environment of its own because Inspect brings s3fs and textual, which nothing else of nip needs.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
use_environment .inspect-env inspect_constraints.txt "$@"
make_environment
echo "inspect-ai, nip and what they require ..."
install_nip inspect,graphs,figures -c "$CONSTRAINTS" \
    pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis certifi playwright
"$DIR/bin/python" -m pip check
"$DIR/bin/python" - <<'EOF'
from importlib.metadata import version

import nip_inspect.registry

print(f"inspect-ai {version('inspect-ai')}, openai {version('openai')}")
EOF
note_environment
