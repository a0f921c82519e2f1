# Sourced from the repository's root on the GPU machine: unpacks .gpu/ once and sets the environment for SGLang.
began=$(date +%s)
CARRY=$PWD/.gpu KERNELS=/tmp/kernels
SITE=/tmp/site-$(sha256sum < $CARRY/site.tar.xz | cut -c1-12)
mkdir -p $SITE $KERNELS
( python3 -V; nvidia-smi -L; nproc; free -g | head -2; df -h /tmp /dev/shm | tail -2; nvcc --version | tail -2 ) > "$1/machine.txt" 2>&1
unpack() { tar -xJf "$1" -C "$2" 2>/dev/null || python3 -c "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])" "$1" "$2"; }
if [ ! -e $SITE/.complete ]; then
  unpack $CARRY/attention.tar.xz $SITE &
  [ -e $CARRY/kernels.tar.xz ] && unpack $CARRY/kernels.tar.xz $KERNELS &
  unpack $CARRY/site.tar.xz $SITE
  # Compiled once here, not by a dozen starting processes side by side.
  python3 -m compileall -q -j 0 $SITE/sglang/srt $SITE/sglang/kernels $SITE/transformers/models/llama $SITE/flashinfer operator benchmarks > /dev/null 2>&1
  wait
  touch $SITE/.complete
fi
echo "unpacked after $(( $(date +%s) - began )) s"
export PYTHONPATH=$SITE PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 BENCHMARK_SCRATCH=/tmp/benchmark
export SGLANG_ENABLE_JIT_DEEPGEMM=0 SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1
export TVM_FFI_CACHE_DIR=$KERNELS/tvm SGLANG_JIT_CACHE_DIR=$KERNELS/jit TRITON_CACHE_DIR=$KERNELS/triton FLASHINFER_WORKSPACE_BASE=$KERNELS/fi
export CUDA_HOME=${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")}
# Kernels that an earlier run could not finish; nobody waits for it here.
nice python3 -m benchmarks.gpu.kernels $KERNELS > "$1/kernels.txt" 2>&1 &
# What was compiled in this run, for `make_carry --kernels`: the next run starts a minute or more sooner.
keep_kernels() { tar -C $KERNELS --exclude='*.ttir' --exclude='*.ttgir' --exclude='*.source' -cJf "$1/kernels.tar.xz" . ; ls -la "$1/kernels.tar.xz"; }
