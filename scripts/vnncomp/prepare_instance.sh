#!/bin/bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB: end what an earlier instance of ours left, and warm the file cache.
# The exit code is not 0 only if the arguments are wrong, so that no instance is skipped.
set -u
[ "${1:-}" = v1 ] || { echo "expected the version v1 as the first argument, got '${1:-}'" >&2; exit 1; }
[ $# -eq 4 ] || { echo "expected: v1 CATEGORY ONNX VNNLIB" >&2; exit 1; }
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
left="${HOLDFAST_PID_FILE:-/tmp/holdfast-vnncomp.pid}"
if [ -f "$left" ]; then
  # Another process may have got the number since.
  if tr '\0' ' ' < "/proc/$(cat "$left")/cmdline" 2> /dev/null | grep -q run_instance.py; then
    kill -KILL "$(cat "$left")" 2> /dev/null
  fi
  rm -f "$left"
fi
"${HOLDFAST_PYTHON:-$here/../../.venv/bin/python}" -c "import holdfast.verification, onnxruntime" 2> /dev/null
exit 0
