#!/usr/bin/env bash
# The drop-in on a machine with a GPU, PyTorch and a C++ compiler: `drop_in_gpu.sh PACKAGE TEST_CUDA [PART…]`.
# PACKAGE is a folder with the package `tonnage` (a wheel, unpacked), TEST_CUDA PyTorch's test/test_cuda.py at the installed
# release. Everything goes into $OUT: results.jsonl, a line for each result; log.txt; table.txt, made anew after each part. What
# results.jsonl has already is not run again: a second call goes on, also from a file that $BEFORE names. Parts, and how long each
# may take at most, in seconds:
#   smoke     60  the shim is built, the allocators train
#   costs     90  what a request costs, and a recorded one
#   steps    360  step times of allocators that take turns, $STEP_SECONDS (default 38) for each workload: needs the GPU for itself
#   peaks     90  peaks of memory
#   limit     90  1.05 of what is live at most; needs peaks
#   losses   120  with deterministic algorithms: PyTorch's allocator twice, then the others
#   scripts  150  the same of the scripts in testdata/scripts
#   extras   240  small programs that need a GPU that computes
#   tests    400  PyTorch's own, under $ALLOCATORS (default: native pytorch pages)
# $WORKLOADS names those to run (default: gpt2 bert llama resnet50 deeplab generate), $SCRIPTS the scripts, $SCALE a factor for all times.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
package="$1" test_cuda="$2"
shift 2
parts="${*:-smoke costs steps peaks limit losses extras scripts tests}"
out="$(mkdir -p "${OUT:-.}" && cd "${OUT:-.}" && pwd)"
results="$out/results.jsonl"
if [ -n "${BEFORE:-}" ] && [ ! -e "$results" ]; then cp "$BEFORE" "$results"; fi
names="${WORKLOADS:-gpt2 bert llama resnet50 deeplab generate}"
scripts="${SCRIPTS:-seed_mlp lstm_lm vit_train small_cnn small_gpt hf_trainer_bert accelerate_t5 lora_llama unet_diffusion serve_batches gnn_products fsdp_llama lightning_resnet compile_gpt}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
export PYTHONPATH="$package:$here/pytorch${PYTHONPATH:+:$PYTHONPATH}" TONNAGE_CACHE_DIR="${TONNAGE_CACHE_DIR:-$folder}" PYTHONDONTWRITEBYTECODE=1
export CUBLAS_WORKSPACE_CONFIG=:4096:8 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export TORCHINDUCTOR_COMPILE_THREADS=1 PYTHONUNBUFFERED=1
python="${PYTHON:-python3}" tools="$here/pytorch"
most() { awk -v seconds="$1" -v scale="${SCALE:-1}" 'BEGIN { printf "%d", seconds * scale }'; }
{ nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; nproc; date -u +%F; } | tee -a "$out/log.txt"
for part in $parts; do
  began=$SECONDS
  case "$part" in
    smoke)
      timeout -k 5 "$(most 90)" "$python" -c 'import time, torch, tonnage.torch as t; a = time.time(); print(torch.__version__, t.install(policy="pages", publish=False, fallback=False)); print("installed in %.1f s" % (time.time() - a))'
      WORKLOADS=mlp AT_ONCE=2 STEPS=3 timeout -k 5 "$(most 60)" "$python" "$tools/drop_in_runs.py" smoke "$results" "$(most 50)" mlp
      timeout -k 5 "$(most 60)" "$python" -m tonnage exec -- "$python" "$tools/drop_in_workload.py" mlp native 2 | cut -c1-300
      ;;
    costs) timeout -k 5 "$(most 90)" "$python" "$tools/drop_in_costs.py" "$results" ;;
    # shellcheck disable=SC2086  # names are words
    steps) timeout -k 5 "$(most 480)" "$python" "$tools/drop_in_steps.py" "$results" "$(most "${STEP_SECONDS:-38}")" $names ;;
    # shellcheck disable=SC2086
    peaks | limit) timeout -k 5 "$(most 120)" "$python" "$tools/drop_in_runs.py" "$part" "$results" "$(most 80)" $names ;;
    # shellcheck disable=SC2086
    losses) timeout -k 5 "$(most 150)" "$python" "$tools/drop_in_runs.py" losses "$results" "$(most 110)" $names ;;
    scripts)
      files=""
      for name in $scripts; do files="$files $here/../testdata/scripts/$name.py"; done
      # shellcheck disable=SC2086
      timeout -k 5 "$(most 190)" "$python" "$tools/drop_in_runs.py" scripts "$results" "$(most 150)" $files
      ;;
    extras) timeout -k 5 "$(most 240)" "$python" "$tools/drop_in_extras.py" "$results" ;;
    tests)
      for allocator in ${ALLOCATORS:-native pytorch pages}; do
        timeout -k 5 "$(most "$((${TEST_SECONDS:-130} + 90))")" "$python" "$tools/drop_in_tests.py" "$test_cuda" "$allocator" "$(most "${TEST_SECONDS:-130}")" "$results" \
          TestMemPool TestBlockStateAbsorption TestCuda TestCachingHostAllocatorCudaGraph TestCudaAllocator TestCudaMallocAsync
      done
      ;;
    *) echo "there is no part $part" ;;
  esac 2>> "$out/log.txt" | tee -a "$out/log.txt"
  echo "# $part: $((SECONDS - began)) s" | tee -a "$out/log.txt"
  "$python" "$tools/drop_in_table.py" "$results" > "$out/table.txt" 2>> "$out/log.txt"
done
cat "$out/table.txt"
# What does not help whoever reads it would fill the room there is for what comes back.
tail -c 4000000 "$out/log.txt" > "$folder/log" && mv "$folder/log" "$out/log.txt"
