#!/usr/bin/env bash
# The policy `pages` on a machine with a GPU: conformance, the command streams, the soak, an hour of gpt2_varlen at full speed.
# Needs no Rust there. On the machine that builds: bash benches/pages_gpu.sh build [PROFILE] makes gpu-pages/, which is all that has to
# travel. Then, on the GPU machine: bash gpu-pages/pages_gpu.sh [SOAK_SECONDS]
set -uo pipefail
cd "$(dirname "$0")" || exit 1
if [ "${1:-}" = build ]; then
  cd .. || exit 1
  profile="${2:-release}"
  mkdir -p gpu-pages/streams gpu-pages/traces
  for suite in "tonnage-device cuda_real" "tonnage-replay devices" "tonnage-replay pages_gpu" "tonnage-memory soak"; do
    read -r package name <<< "$suite"
    program=$(cargo test --profile "$profile" --locked --no-run --message-format=json -p "$package" --test "$name" |
      python3 -c 'import json, sys
print([line["executable"] for line in map(json.loads, sys.stdin) if line.get("executable") and line["profile"]["test"]][-1])') || exit 1
    strip -o "gpu-pages/$name" "$program" || exit 1
  done
  cp testdata/streams/[0-9][0-9].jsonl gpu-pages/streams/
  cp testdata/traces/gpt2_varlen.default.pickle.zst gpu-pages/traces/
  cp benches/pages_gpu.sh gpu-pages/
  du -sh gpu-pages
  exit 0
fi
export TONNAGE_TEST_CUDA=1 TONNAGE_TESTDATA=. TONNAGE_SOAK_SECONDS="${1:-45}"
failed=0
echo "# $(date -u +%F)"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
lscpu | grep -E 'Model name|^CPU\(s\)'
for suite in "cuda_real" "devices gpu" "soak gpu" "pages_gpu gpu --nocapture"; do
  echo "## $suite"
  # shellcheck disable=SC2086  # the words after the first are the filter
  timeout 150 ./$suite || { echo "failed: $suite"; failed=1; }
done
nvidia-smi --query-gpu=memory.used --format=csv,noheader
exit "$failed"
