# What build_*.sh share; sourced by them. Each builds one virtual environment, DIR, and does nothing
# if DIR was built by that very script with these very constraints.
#
#   use_environment DEFAULT CONSTRAINTS [DIR]   sets ROOT, DIR, PYTHON, CONSTRAINTS; ends the script
#                                               if DIR is up to date
#   make_environment    an empty one at DIR
#   pip_install ...     into it; PIP_OPTIONS is meant to be split into words
#   install_nip EXTRAS ...   all distributions of the repository in place, and more arguments for pip;
#                       EXTRAS of nip-loop, "" for none
#   note_environment    it is whole now

PYTHON="${PYTHON:-python3}"
PIP_OPTIONS="${PIP_OPTIONS:-}"

use_environment() {
    ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
    DIR="${3:-$ROOT/$1}"
    CONSTRAINTS="$ROOT/scripts/$2"
    STAMP="$DIR/.built"
    WANTED="$(cat "${BASH_SOURCE[@]}" "$CONSTRAINTS" |
        "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), sys.version)') $ROOT"
    if [ -z "${REBUILD:-}" ] && [ -x "$DIR/bin/python" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$WANTED" ]; then
        echo "$DIR is up to date"
        exit 0
    fi
    "$PYTHON" -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), f"nip needs Python 3.11 to 3.13, this is {sys.version.split()[0]}; set PYTHON=..."'
}

make_environment() {
    if [ -e "$DIR" ] && [ ! -f "$DIR/pyvenv.cfg" ] && [ -n "$(ls -A "$DIR")" ]; then
        echo "$DIR exists and is no virtual environment; remove it or name another directory" >&2
        exit 1
    fi
    "$PYTHON" -m venv --clear "$DIR"
    echo '*' > "$DIR/.gitignore"
}

# shellcheck disable=SC2086
pip_install() {
    # Modules are compiled when they are imported first, most never.
    "$DIR/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-compile \
        $PIP_OPTIONS "$@"
}

install_nip() {
    local extras="$1" parts=() folder
    shift
    for folder in "$ROOT"/packages/*/pyproject.toml; do
        parts+=(-e "${folder%/pyproject.toml}")
    done
    # Without build isolation: pip would make an environment for each of them. The root comes first:
    # behind a part that needs it, pip would look on an index for the root without extras.
    pip_install "setuptools>=77"
    pip_install --no-build-isolation -e "$ROOT${extras:+[$extras]}" "${parts[@]}" "$@"
}

note_environment() {
    echo "$WANTED" > "$STAMP"
}
