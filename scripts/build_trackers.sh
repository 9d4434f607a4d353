#!/usr/bin/env bash
# Builds an environment with nip and the packages of all trackers, for `make test-trackers`.
#
#   scripts/build_trackers.sh [DIR]      DIR is .trackers-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although DIR is up to date
#
# It takes some minutes and 0.8 GB, and has no torch. Does nothing if DIR is up to date. Each tracker
# is an extra of nip and installs beside it; they are not in .venv because they bring 50 packages that
# no other test needs. tensorboard itself is here for its reader of event files alone: nip writes them
# with tensorboardX, which brings 2 packages instead of 10.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
use_environment .trackers-env trackers_constraints.txt "$@"
make_environment
echo "nip with trackio, wandb, mlflow and tensorboard ..."
install_nip trackio,wandb,mlflow,tensorboard,figures -c "$CONSTRAINTS" \
    tensorboard pytest pytest-asyncio pytest-timeout hypothesis
"$DIR/bin/python" - <<'PY'
from importlib.metadata import version

import mlflow
import tensorboard
import tensorboardX
import trackio
import wandb

import nip_bridges.tracking.feeder

names = ("trackio", "wandb", "mlflow-skinny", "tensorboardX")
print(", ".join(f"{name} {version(name)}" for name in names))
PY
note_environment
