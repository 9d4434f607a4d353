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
# nip's own environment, as litellm asks for openai<3 and nip for openai>=3. litellm imports mcp for
# calls with tools, without requiring it.
#
# Does nothing if DIR was built by this very script with these very constraints.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
DIR="${1:-$ROOT/.clients-env}"
PYTHON="${PYTHON:-python3}"
PIP_OPTIONS="${PIP_OPTIONS:-}"
OPENAI_NODE_VERSION=6.49.0
CONSTRAINTS="$ROOT/scripts/clients_constraints.txt"
STAMP="$DIR/.built"

digest() {
    cat "${BASH_SOURCE[0]}" "$CONSTRAINTS" |
        "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), sys.version)'
}
WANTED="$(digest)"
if [ -z "${REBUILD:-}" ] && [ -x "$DIR/bin/python" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$WANTED" ]; then
    echo "$DIR is up to date"
    exit 0
fi
"$PYTHON" -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), f"nip needs Python 3.11 to 3.13, this is {sys.version.split()[0]}; set PYTHON=..."'
command -v npm > /dev/null || { echo "npm is not here: install Node.js 20 or later" >&2; exit 1; }
if [ -e "$DIR" ] && [ ! -f "$DIR/pyvenv.cfg" ] && [ -n "$(ls -A "$DIR")" ]; then
    echo "$DIR exists and is no virtual environment; remove it or name another directory" >&2
    exit 1
fi

"$PYTHON" -m venv --clear "$DIR"
echo '*' > "$DIR/.gitignore"
# PIP_OPTIONS is meant to be split into words.
# shellcheck disable=SC2086
"$DIR/bin/python" -m pip install --quiet --quiet --disable-pip-version-check $PIP_OPTIONS \
    -c "$CONSTRAINTS" openai litellm mcp langchain-openai instructor dspy jsonschema \
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
echo "$WANTED" > "$STAMP"
