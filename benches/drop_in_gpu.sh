#!/usr/bin/env bash
# The drop-in on a machine with a GPU, PyTorch and a C++ compiler: `drop_in_gpu.sh PACKAGE TEST_CUDA [PART…]`.
# PACKAGE is a folder with the package `tonnage` (a wheel, unpacked), TEST_CUDA PyTorch's test/test_cuda.py at the installed
# release. Results are lines of JSON in $OUT, and a table at the end. Parts, each within eight minutes on an H200:
#   smoke     it installs, and trains
#   extras    small programs that need a GPU that computes
#   losses    with deterministic algorithms: PyTorch's allocator twice, then the others
#   steps     step times of allocators that take turns
#   workloads peaks and step times, each in a process of its own
#   limit     1.05 of what is live at most
#   costs     what a request costs, and a recorded one
#   tests     PyTorch's own, under $ALLOCATORS (default: native pytorch pages), each for $TEST_SECONDS (default 150)
# $WORKLOADS names those to run (default: gpt2 bert llama resnet50 deeplab generate).
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
package="$1" test_cuda="$2"
shift 2
parts="${*:-smoke extras costs losses steps limit workloads tests}"
out="${OUT:-.}"
names="${WORKLOADS:-gpt2 bert llama resnet50 deeplab generate}"
export PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}" TONNAGE_CACHE_DIR="${TONNAGE_CACHE_DIR:-$out/cache}"
export CUBLAS_WORKSPACE_CONFIG=:4096:8 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
work="python3 $here/pytorch/drop_in_workload.py"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for part in $parts; do
  began=$SECONDS
  case "$part" in
    smoke)
      python3 -c 'import time, tonnage.torch as t; a = time.time(); print(t.install(policy="pages", publish=False)); print("installed in %.1f s" % (time.time() - a))'
      for allocator in native pytorch pages; do timeout 60 $work mlp $allocator 6; done | tee "$out/smoke.jsonl" | cut -c1-600
      ;;
    extras)
      for allocator in native pytorch pages; do timeout 120 python3 "$here/pytorch/drop_in_extras.py" $allocator 2> "$out/extras.$allocator.err"; done | tee "$out/extras.jsonl"
      ;;
    losses)
      for name in $names; do
        for allocator in native native pytorch pages expandable; do
          DETERMINISTIC=1 timeout -s INT 60 $work $name $allocator 8 2> "$out/losses.err"
        done
      done > "$out/losses.jsonl"
      ;;
    steps)
      for name in $names; do timeout 120 python3 "$here/pytorch/drop_in_steps.py" $name 8; done > "$out/steps.jsonl" 2> "$out/steps.err"
      ;;
    workloads)
      for name in $names; do
        for allocator in native pytorch pages expandable; do timeout -s INT 60 $work $name $allocator 14 2> "$out/last.err"; done
      done > "$out/workloads.jsonl"
      ;;
    limit)
      for name in $names; do timeout -s INT 60 $work $name native 14; done > "$out/peaks.jsonl" 2> "$out/peaks.err"
      python3 "$here/pytorch/drop_in_table.py" limits "$out/peaks.jsonl" | while read -r name bytes; do
        for allocator in native expandable pages; do timeout -s INT 90 $work $name $allocator 14 "$bytes"; done
      done > "$out/limit.jsonl" 2> "$out/limit.err"
      ;;
    costs)
      for round in 1 2 3; do
        for allocator in native pytorch pages; do timeout 60 python3 "$here/pytorch/drop_in_costs.py" $allocator; done
      done > "$out/costs.jsonl" 2> "$out/costs.err"
      ;;
    tests)
      for allocator in ${ALLOCATORS:-native pytorch pages}; do
        python3 "$here/pytorch/drop_in_tests.py" "$test_cuda" $allocator "${TEST_SECONDS:-150}" "$out/tests.jsonl" \
          TestMemPool TestBlockStateAbsorption TestCuda TestCachingHostAllocatorCudaGraph TestCudaAllocator TestCudaMallocAsync \
          2> "$out/tests.$allocator.err"
      done
      ;;
  esac
  echo "# $part: $((SECONDS - began)) s"
done
python3 "$here/pytorch/drop_in_table.py" table "$out"
