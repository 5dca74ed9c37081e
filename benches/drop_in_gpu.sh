#!/usr/bin/env bash
# The drop-in on a machine with a GPU, PyTorch and a C++ compiler: `drop_in_gpu.sh PACKAGE TEST_CUDA [PART…]`.
# PACKAGE is a folder with the package `tonnage` (a wheel, unpacked), TEST_CUDA PyTorch's test/test_cuda.py at the installed
# release. Parts: smoke, extras, workloads, limit, costs, tests. Results are lines of JSON in $OUT, and a table at the end.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
package="$1" test_cuda="$2"
shift 2
parts="${*:-smoke extras workloads limit costs tests}"
out="${OUT:-.}"
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
    workloads)
      for round in 1 2; do
        for name in gpt2 bert llama resnet50 deeplab generate; do
          allocators="native pytorch pages"
          [ "$round" = 1 ] && allocators="$allocators expandable"
          for allocator in $allocators; do timeout 90 $work $name $allocator 14 2> "$out/last.err" || tail -3 "$out/last.err"; done
        done
      done > "$out/workloads.jsonl"
      ;;
    limit)
      python3 "$here/pytorch/drop_in_table.py" limits "$out/workloads.jsonl" | while read -r name bytes; do
        for allocator in native expandable pages; do timeout 60 $work $name $allocator 14 "$bytes"; done
      done > "$out/limit.jsonl" 2> "$out/limit.err"
      ;;
    costs)
      for round in 1 2; do
        for allocator in native pytorch pages; do timeout 60 python3 "$here/pytorch/drop_in_costs.py" $allocator; done
      done > "$out/costs.jsonl" 2> "$out/costs.err"
      ;;
    tests)
      for allocator in native pytorch pages; do
        timeout 170 python3 "$here/pytorch/drop_in_tests.py" "$test_cuda" $allocator 80 \
          TestCuda TestBlockStateAbsorption TestMemPool TestCudaMallocAsync TestCachingHostAllocatorCudaGraph \
          2> "$out/tests.$allocator.err" | tail -1
      done > "$out/tests.jsonl"
      ;;
  esac
  echo "# $part: $((SECONDS - began)) s"
done
python3 "$here/pytorch/drop_in_table.py" table "$out"
