#!/bin/bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB RESULT_FILE TIMEOUT: answer one instance; see run_instance.py.
set -u
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
left="${HOLDFAST_PID_FILE:-/tmp/holdfast-vnncomp.pid}"
"${HOLDFAST_PYTHON:-$here/../../.venv/bin/python}" "$here/run_instance.py" "$@" &
echo $! > "$left"
wait $!
code=$?
rm -f "$left"
exit $code
