#!/usr/bin/env bash
# Builds an environment for the documentation: the site's builder, what executes notebooks, and nip
# itself without torch. For `make docs` and `make notebooks`.
#
#   scripts/build_docs.sh [DIR]       DIR is .docs-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although DIR is up to date
#
# It takes a minute or two and 0.8 GB, and is the only part that needs a network. Does nothing if DIR
# is up to date. Where there is no npm, a picture drawn by Mermaid is left as its
# text, and the search works over HTTP alone.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
use_environment .docs-env docs_constraints.txt "$@"
make_environment
echo "zensical, nbclient, nip and what they require ..."
install_nip figures -c "$CONSTRAINTS" zensical mkdocstrings-python ruff \
    nbclient ipykernel pandas polars pytest pytest-timeout certifi hypothesis
"$DIR/bin/python" -m pip check
mkdir -p "$DIR/vendored"
if command -v npm > /dev/null; then
    # As a file of the site: the builder would have each reader fetch it.
    (cd "$DIR/vendored" && npm pack --silent mermaid@11.17.2 iframe-worker@1.0.4 > /dev/null &&
        tar -xzf mermaid-*.tgz --strip-components=2 package/dist/mermaid.min.js &&
        tar -xzOf iframe-worker-*.tgz package/shim/index.js > iframe-worker.js && rm ./*.tgz)
fi
note_environment
