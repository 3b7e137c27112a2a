#!/usr/bin/env bash
# What a machine with a GPU is to show, in one command without downloads or installations: parity of
# every operation, the memory checker on the small ones, the device's rates, and greedy tokens after
# restores: 20 prompts of the demo model, 200 tokens each, by three plans.
#   make gpu-bundle                     on the build machine: build/gpu, with the libraries it needs
#   tools/gpu_check.sh [FOLDER]         on the other; CSV files go to FOLDER (bench/results/GPU)
#
# Not here yet: restores and decoding of large models with their times, and PyTorch beside them
# (README.md says what is unverified).
set -uo pipefail
cd "$(dirname "$0")/.."
bundle=build/gpu
[ -x $bundle/hcache ] || { echo "gpu_check: no $bundle: run make gpu-bundle first" >&2; exit 1; }
command -v nvidia-smi >/dev/null || { echo "gpu_check: no nvidia-smi: is there a GPU?" >&2; exit 1; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
name=$(tr '[:upper:] ' '[:lower:]-' <<<"${gpu#NVIDIA }")
out=${1:-bench/results/$name}
mkdir -p "$out"
# Our own libraries last: the machine's cuBLAS fits its driver.
cublas=$(find / -name 'libcublas.so.*' -not -path '/proc/*' 2>/dev/null | head -1)
export LD_LIBRARY_PATH=${cublas:+$(dirname "$cublas"):}${LD_LIBRARY_PATH:-}:$PWD/$bundle/lib
echo "GPU: $gpu; cuBLAS: ${cublas:-none}; commit: $(cat $bundle/commit)"
failed=0
step() { # step NAME SECONDS COMMAND...
    local what=$1 limit=$2 start=$SECONDS
    shift 2
    if timeout "$limit" "$@" >"$out/$what.log" 2>&1; then
        echo "ok     $what ($((SECONDS - start)) s)"
    else
        failed=1
        echo "FAILED $what ($((SECONDS - start)) s): $out/$what.log"
        grep -aE 'not ok|ERROR|error|failed' "$out/$what.log" | head -8
    fi
}
step parity 120 $bundle/test_cuda
if command -v compute-sanitizer >/dev/null; then
    step memcheck 150 compute-sanitizer --error-exitcode 9 $bundle/test_cuda
else
    echo "skip   memcheck: no compute-sanitizer"
fi
for dtype in bf16 f16; do
    step "device-$dtype" 60 $bundle/hcache bench device --device cuda --dtype $dtype --csv "$out/device-$dtype.csv"
    cat "$out/device-$dtype.log"
done
if command -v python3 >/dev/null; then
    step greedy 200 python3 tools/gpu_greedy.py $bundle/hcache models/demo models/demo/dialogues.json cuda 20 200 "$out/greedy.csv"
    tail -1 "$out/greedy.log"
else
    echo "skip   greedy: no python3"
fi
exit $failed
