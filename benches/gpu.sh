#!/usr/bin/env bash
# The suites, the soak and the benchmarks on a machine with a GPU and PyTorch.
# Needs no Rust there: `cargo xtask gpu-bundle` builds everything into gpu-bundle/, which is all
# that has to travel. Then, on the GPU machine: bash gpu-bundle/gpu.sh [SOAK_SECONDS]
set -uo pipefail
cd "$(dirname "$0")"
export TONNAGE_TEST_CUDA=1 TONNAGE_TESTDATA=. TONNAGE_SOAK_SECONDS="${1:-60}"
failed=0
echo "# $(date -u +%F)"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
lscpu | grep -E 'Model name|^CPU\(s\)'
python3 -c 'import torch; print("PyTorch", torch.__version__)' 2>/dev/null || echo "no PyTorch"
# Of some suites only the tests of the real GPU: the others need the fake driver, or ran before.
for suite in "cuda_real" "gpu" "devices gpu" "soak gpu"; do
  echo "## $suite"
  # shellcheck disable=SC2086  # the second word is the filter
  ./$suite || failed=1
done
echo "## tensor: every operation, gradient and technique against the host"
for suite in tensor tensor_suite; do
  ./$suite --test-threads 8 > $suite.txt 2>&1 || { failed=1; grep -A20 '^failures:' $suite.txt; }
  tail -n 3 $suite.txt
done
echo "## recipes: allocated, reserved, and what was predicted"
python3 recipes.py ./tonnage || failed=1
echo "## training beside PyTorch, in turns"
python3 throughput.py ./throughput || failed=1
echo "## bench"
for device in dry host cuda:0; do
  echo "# $device"
  ./tonnage bench --device "$device" --json || failed=1
done
echo "## PyTorch's tools on snapshots that were dumped here"
for device in dry host cuda:0; do
  snapshot="snapshot.${device%%:*}.pickle"
  ./dump_snapshot "$device" "$snapshot" > /dev/null && python3 memory_viz.py "$snapshot" || failed=1
done
echo "## memory that runs out, and tests of memory, with the wheel"
python3 oom.py ./*.whl || failed=1
echo "## PyTorch's allocator and the driver's own, same sizes and threads; then Tonnage and PyTorch in turns"
python3 beside.py ./tonnage || failed=1
exit "$failed"
