#!/usr/bin/env bash
# Puts what drives a browser and what looks for barriers in pages into a directory of its own, for
# `make test-view`: playwright-core and axe-core of npm.
#
#   scripts/build_view.sh [DIR]       DIR is .view-env in the repository root unless given
#
#   REBUILD=1            build again although DIR is up to date
#
# It takes seconds and 20 MB; it needs node (20 or later) and npm. The browser is the system's
# Chromium. Does nothing if DIR is up to date.
set -euo pipefail

PLAYWRIGHT_VERSION=1.65.1
AXE_VERSION=4.14.1

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
DIR="${1:-$ROOT/.view-env}"
WANTED="playwright-core@$PLAYWRIGHT_VERSION axe-core@$AXE_VERSION"
if [ -z "${REBUILD:-}" ] && [ "$(cat "$DIR/.built" 2>/dev/null)" = "$WANTED" ]; then
    echo "$DIR is up to date"
    exit 0
fi
command -v npm > /dev/null || { echo "npm is not here: install Node.js 20 or later" >&2; exit 1; }
mkdir -p "$DIR"
echo '*' > "$DIR/.gitignore"
echo '{"private": true}' > "$DIR/package.json"
# shellcheck disable=SC2086
npm install --prefix "$DIR" --no-audit --no-fund --no-package-lock --silent $WANTED
echo "$WANTED" > "$DIR/.built"
