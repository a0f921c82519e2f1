#!/bin/bash
# bash benchmarks/gpu/shakeout.sh OUT DEADLINE: on the GPU machine, from the repository's root, with .gpu/ beside it.
set -u
source benchmarks/gpu/machine.sh "$1"
PYTHONPATH=$PYTHONPATH:operator:. python3 -m benchmarks.gpu.shakeout "$1" "$2"
code=$?
keep_kernels "$1"
exit $code
