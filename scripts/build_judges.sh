#!/usr/bin/env bash
# Builds an environment with the libraries whose judges nip attacks, and nip, for `make test-judges`
# (docs/judges-from-libraries.md): verifiers, DSPy, TRL and OpenPipe ART.
#
#   scripts/build_judges.sh [DIR]        DIR is .judges-env in the repository root unless given
#
#   PYTHON=python3.12    the interpreter to build it with (3.11 to 3.13)
#   PIP_OPTIONS="..."    more options for pip
#   REBUILD=1            build again although DIR is up to date
#   NEWEST=1             the newest releases, not those of judges_constraints.txt; builds again
#
# It takes some minutes and 1.6 GB, and has no torch. Does nothing if DIR is up to date.
#
# It is an environment of its own because verifiers and litellm, which DSPy and ART require, ask for
# openai<3, and constraints.txt has the newer one. Inspect asks for openai>=3.4 where it calls a
# server of OpenAI's API, so its scorers are tested in the environment of build_inspect.sh. TRL comes
# without its requirements, as they bring torch; its reward functions need none of them but
# math-verify, which verifiers brings. pycosat, which reasoning-gym requires, is compiled, so a C
# compiler is needed.
set -euo pipefail

REBUILD="${REBUILD:-${NEWEST:-}}"
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
use_environment .judges-env judges_constraints.txt "$@"
if [ -n "${NEWEST:-}" ]; then CONSTRAINTS=/dev/null; fi
make_environment
echo "verifiers, dspy, openpipe-art, reasoning-gym, nip and their requirements ..."
install_nip figures,graphs,reasoning-gym -c "$CONSTRAINTS" verifiers dspy openpipe-art \
    pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis certifi
"$DIR/bin/python" -m pip check
echo "trl ..."
pip_install -c "$CONSTRAINTS" --no-deps trl
LITELLM_LOCAL_MODEL_COST_MAP=True "$DIR/bin/python" - <<'EOF'
from importlib.metadata import version

from art.rewards.ruler import ruler
from trl.rewards import accuracy_reward
from verifiers.v1.judges import ReferenceJudge

names = "verifiers dspy trl openpipe-art openai litellm reasoning-gym".split()
print(", ".join(f"{name} {version(name)}" for name in names))
EOF
note_environment
