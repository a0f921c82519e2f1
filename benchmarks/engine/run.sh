#!/bin/bash
# bash benchmarks/engine/run.sh OUT DEADLINE [--part table|waves]: on the GPU machine, from the repository's root, with .gpu/ beside it.
set -u
source benchmarks/gpu/machine.sh "$1"
PYTHONPATH=$PYTHONPATH:operator:. python3 -m benchmarks.engine.drive "$@"
code=$?
keep_kernels "$1"
exit $code
