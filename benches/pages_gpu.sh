#!/usr/bin/env bash
# The policy `pages` on a machine with a GPU: conformance, the command streams, the soak, an hour of gpt2_varlen at full speed.
# Needs no Rust there: the tests' programs lie beside this, under the names below, and the recording under traces/.
# On the machine that builds:
#   cargo test --release --no-run -p tonnage-device --test cuda_real, -p tonnage-replay --test devices --test pages_gpu,
#   -p tonnage-memory --test soak; copy these, testdata/streams and testdata/traces/gpt2_varlen.default.pickle.zst.
set -uo pipefail
cd "$(dirname "$0")"
export TONNAGE_TEST_CUDA=1 TONNAGE_TESTDATA=. TONNAGE_SOAK_SECONDS="${1:-45}"
failed=0
echo "# $(date -u +%F)"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
lscpu | grep -E 'Model name|^CPU\(s\)'
for suite in "cuda_real" "devices gpu" "soak gpu" "pages_gpu gpu --nocapture"; do
  echo "## $suite"
  # shellcheck disable=SC2086  # the words after the first are the filter
  ./$suite || failed=1
done
exit "$failed"
