#!/bin/bash
# bash benchmarks/zero-step/run.sh OUT DEADLINE [--trained DIR]: on the GPU machine, from the repository's root, with .gpu/ beside it.
set -u
source benchmarks/gpu/machine.sh "$1"
PYTHONPATH=$PYTHONPATH:operator:. python3 -m benchmarks.zero-step.drive "$@"
code=$?
keep_kernels "$1"
exit $code
