#!/bin/bash
# install_tool.sh v1: install holdfast with onnxruntime into .venv at the root of this repository.
set -euo pipefail
[ "${1:-}" = v1 ] || { echo "expected the version v1 as the first argument, got '${1:-}'" >&2; exit 1; }
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python3 -m venv .venv
.venv/bin/pip install --constraint constraints.txt --editable '.[runtime]'
.venv/bin/holdfast --version
