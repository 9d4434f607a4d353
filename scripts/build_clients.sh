#!/usr/bin/env bash
# Builds an environment with the clients that other projects use on an OpenAI API, for
# `make test-clients`: openai, litellm, langchain-openai, instructor, dspy, and openai of npm.
#
#   scripts/build_clients.sh [DIR]       DIR is .clients-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although DIR is up to date
#
# It takes about two minutes and 0.5 GB; it needs node (20 or later) and npm. The servers run in
# nip's own environment, as litellm asks for openai<3 and constraints.txt has the newer one. litellm
# imports mcp for calls with tools, without requiring it.
#
# Does nothing if DIR is up to date.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
OPENAI_NODE_VERSION=6.49.0
use_environment .clients-env clients_constraints.txt "$@"
command -v npm > /dev/null || { echo "npm is not here: install Node.js 20 or later" >&2; exit 1; }
make_environment
pip_install -c "$CONSTRAINTS" openai litellm mcp langchain-openai instructor dspy jsonschema \
    pytest pytest-asyncio pytest-timeout certifi hypothesis
echo "openai of npm ..."
mkdir -p "$DIR/node"
echo '{"private": true}' > "$DIR/node/package.json"
npm install --prefix "$DIR/node" --no-audit --no-fund --no-package-lock --silent \
    "openai@$OPENAI_NODE_VERSION"
LITELLM_LOCAL_MODEL_COST_MAP=True "$DIR/bin/python" - <<'EOF'
from importlib.metadata import version

import dspy, instructor, langchain_openai, litellm, openai

names = ("openai", "litellm", "langchain-openai", "instructor", "dspy")
print(", ".join(f"{name} {version(name)}" for name in names))
EOF
note_environment
