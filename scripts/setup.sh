#!/usr/bin/env bash
# Makes .venv with everything that the make targets need, and stamps it with .venv/.ready.
# Repeatable: a set-up that was broken off starts again; a finished one takes a few seconds.
# PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

say() { printf 'set-up: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3 python3.12 python3.13 python3.14; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

missing_packages() {
    local tool
    for tool in g++ make perl; do
        command -v "$tool" >/dev/null || echo "$tool"
    done
    if [ -z "$python" ]; then
        echo python3
    fi
    if [ -z "$python" ] || ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo python3-venv
    fi
}

python=$(find_python)
missing=$(missing_packages | tr '\n' ' ')
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $missing(apt-get)"
        apt-get update -qq
        # shellcheck disable=SC2086  # a list of package names
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
        python=$(find_python)
        missing=$(missing_packages | tr '\n' ' ')
        if [ -n "$missing" ]; then
            fail "still missing after apt-get: $missing(Python must be 3.11 or newer)"
        fi
    else
        say "missing: $missing"
        say "on Debian or Ubuntu run this line, then make again:"
        fail "  sudo apt-get update && sudo apt-get install -y $missing"
    fi
fi

# An environment knows its own path: one that was copied, moved or cut short is made anew.
if ! .venv/bin/python -c 'import pip' 2>/dev/null ||
    [ "$(.venv/bin/python -c 'import sys; print(sys.prefix)')" != "$root/.venv" ] ||
    ! head -n 1 .venv/bin/pip | grep -qF "$root/.venv/"; then
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

say "installing the pinned packages of requirements.lock (about 1 GB the first time)"
.venv/bin/python -m pip install -qq -r requirements.lock ||
    fail "pip could not install requirements.lock; check the network and run make again"
.venv/bin/python -m pip install -qq --no-build-isolation --no-deps -e .

mkdir -p .venv/path
ln -sfn ../.. .venv/path/gradweave
printf '%s\n' "$root" >.venv/.ready
say "ready"
