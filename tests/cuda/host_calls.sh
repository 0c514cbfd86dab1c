#!/usr/bin/env bash
# Host code that calls a DEVICE function. nvcc refuses most such calls, but inside templates and generic lambdas it lets
# them pass and makes the function's host side end the program with exit(1), without a word. No object of kernels/cuda
# has another reason to call exit().
#   host_calls.sh NM LIBRARY
set -euo pipefail
nm=$1 library=$2
found=$("$nm" -A "$library" 2>/dev/null | grep -E ' U exit$' || true)
if [ -n "$found" ]; then
    echo "host code calls a DEVICE function (HOST_DEVICE is for both) in:"
    sed -E 's/.*:([^:]*\.o):.*/  \1/' <<<"$found"
    exit 1
fi
