#!/usr/bin/env bash
# Measures on a machine with a GPU, with one command, in less than nine minutes, without downloads
# or installations: parity of every operation, the memory checker, greedy tokens after restores, and
# how long restores, prefill and decoding of 7B, 8B and 13B models take, compared with the machine's
# ceilings and with PyTorch.
#
#   make gpu-bundle                   on the build machine: build/gpu, with the libraries it needs, and the
#                                     same as build/gpu.tar.gz; copy either with the tree
#   tools/gpu_check.sh [FOLDER]       on the other machine; FOLDER defaults to bench/results/GPU
#   tools/gpu_check.sh --dry FOLDER   here: the same parts, tiny, on the emulated GPU (tests the script)
#
# Every part has its own time limit, and a part that fails or is late affects no other.  The most
# informative parts come first, and those for which no time is left are named.  FOLDER receives
# table.md, a CSV file per kind of part, and logs.tar.gz.  GPU_CHECK_SECONDS limits the whole (520).
# GPU_CHECK_PARTS, a regular expression, selects parts, to continue in a second run with another
# FOLDER.  Exit status 1: a part failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

dry=
[ "${1:-}" = --dry ] && dry=1 && shift
deadline=${GPU_CHECK_SECONDS:-520}
failed=0
plain=()
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
python=$(command -v python3 || true)

# folders of our own libraries come last, because the machine's cuBLAS fits its driver
find_cublas() {
    local f
    for f in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib /usr/lib/x86_64-linux-gnu; do
        ls "$f"/libcublas.so.1[23] >/dev/null 2>&1 && echo "$f" && return
    done
    f=$(timeout 20 find /opt /usr /home /root -name 'libcublas.so.1[23]' 2>/dev/null | head -1)
    [ -n "$f" ] && dirname "$f"
}

if [ -n "$dry" ]; then
    : "${1:?usage: gpu_check.sh --dry FOLDER}"
    deadline=${GPU_CHECK_SECONDS:-1500}
    hcache=build/release/hcache_emulated test_cuda=build/release/tests/tensor/test_cuda_emulated
    gpu="emulated GPU (dry run: no figure means anything)"
    models="synth:tiny-mha:f16 synth:tiny-gqa:bf16" disk_models=synth:tiny-mha:f16
    lengths=64,128 sums_lengths=64,128 disk_lengths=64 rounds=1 device_args="--tokens 64 --width 256 --runs 1"
    save_args="--batches 1,2 --steps 8 --rounds 1 --context 64 --save-buffer 8M" resume_args="--history 64 --new 16 --rounds 1"
    torch_args="tiny-mha:64,4,4,4,176,512 float16 64,128" torch_device=cpu cpu_model=synth:tiny-mha cpu_lengths=64
    first_save_args="--batches 1 --steps 8 --context 64 --save-buffer 8M" greedy_args="1 2 260" exact_args="1 2 260"
else
    bundle=build/gpu
    hcache=$bundle/hcache test_cuda=$bundle/test_cuda
    [ -x $hcache ] || [ ! -f $bundle.tar.gz ] || tar -C build -xzf $bundle.tar.gz
    [ -x $hcache ] || { echo "gpu_check: no $bundle: run make gpu-bundle first" >&2; exit 1; }
    command -v nvidia-smi >/dev/null || { echo "gpu_check: no nvidia-smi: is there a GPU?" >&2; exit 1; }
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
    models="synth:llama-2-7b:f16 synth:llama-3-8b:bf16 synth:llama-2-13b:f16" disk_models="synth:llama-2-7b:f16 synth:llama-3-8b:bf16"
    lengths=1024,2048,4096,8192,16384 sums_lengths=4096,16384 disk_lengths=1024,4096 rounds=5 device_args=
    save_args="--batches 1,32 --steps 64 --rounds 5 --context 512 --store-cap 24G --save-buffer 4G" resume_args="--history 4096 --new 256 --rounds 5"
    torch_args="llama-2-7b:4096,32,32,32,11008,32000 float16 $lengths" torch_device=cuda cpu_model=synth:llama-2-13b cpu_lengths=512
    first_save_args="--batches 1 --steps 64 --context 512 --save-buffer 4G" greedy_args="20 200 1500" exact_args="4 50 1500"
    cublas=$(find_cublas)
    plain=(env "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}") # other programs have libraries of their own
    export HCACHE_GPU_DIRECT=off  # GPUDirect is off except in the parts that measure it
    export LD_LIBRARY_PATH=${cublas:+$cublas:}${LD_LIBRARY_PATH:-}:$PWD/$bundle/lib
fi
name=$(tr '[:upper:] ' '[:lower:]-' <<<"${gpu#NVIDIA }")
out=${1:-bench/results/$name}
mkdir -p "$out"

# part NAME SECONDS COMMAND...: runs a part; its output goes to NAME.log.
part() {
    local what=$1 limit=$2 start=$SECONDS rc
    shift 2
    [[ $what =~ ^(${GPU_CHECK_PARTS:-.*})$ ]] || return 0
    [ -n "$dry" ] && limit=$((limit * 10))
    [ $((deadline - SECONDS)) -lt "$limit" ] && limit=$((deadline - SECONDS))
    if [ "$limit" -lt 5 ]; then
        echo "skipped  $what: no time is left" | tee -a "$parts/parts.txt"
        return
    fi
    if [ "$(type -t "$1")" = function ]; then # a function limits the time of its own commands
        "$@" >"$parts/$what.log" 2>&1
    else
        timeout -k 5 "$limit" "$@" >"$parts/$what.log" 2>&1
    fi
    rc=$?
    if [ $rc -eq 0 ]; then
        echo "ok       $what ($((SECONDS - start)) s)" | tee -a "$parts/parts.txt"
    else
        failed=1
        [ $rc -eq 124 ] && rc="124, after its $limit s"
        echo "FAILED   $what ($((SECONDS - start)) s, status $rc)" | tee -a "$parts/parts.txt"
        grep -aE 'not ok|ERROR|rror:|failed|hcache' "$parts/$what.log" | head -6 | tee -a "$parts/parts.txt"
    fi
}
missing() { echo "skipped  $1: no $2" | tee -a "$parts/parts.txt"; }

restore() { # restore PLACE SECONDS MODEL:DTYPE
    local model=${3%:*} dtype=${3##*:} place=$1 store=(--store memory) n=$lengths
    [ "$place" = disk ] && store=(--gpu-direct auto) n=$disk_lengths
    part "restore-${model#synth:}-$place" "$2" $hcache bench restore "$model" --device cuda --dtype "$dtype" "${store[@]}" \
        --lengths "$n" --rounds $rounds --staging 512M --methods recompute,kv,hidden,kv+recompute,auto \
        --csv "$parts/restore-${model#synth:}-$place.csv"
}
first=${models%% *}

# Measures the CPU's products of one size with 1, 2, 4, ... threads, because machines with GPUs have
# many cores.
cpu_threads() {
    local t=1 of=$parts/cpu-threads.csv one=$parts/one.csv
    echo threads,rate,unit >"$of"
    while [ "$t" -le "$(nproc)" ]; do
        $hcache bench device --device cpu --dtype bf16 $device_args --only product --threads "$t" --csv "$one" || return
        tail -1 "$one" | sed 's/.*",//' | awk -F, -v t="$t" '{ print t "," $4 "," $5 }' >>"$of"
        t=$((2 * t))
    done
    rm -f "$one"
}

# The parts that decide most come first: copies, products, one restore by each method, the cost of
# saving, the CPU's threads.
# shellcheck disable=SC2086 # lists of words
{
    part first-products 20 $hcache bench device --device cuda --dtype bf16 $device_args --only product --csv "$parts/first-products.csv"
    part first-restore 45 $hcache bench restore "${first%:*}" --device cuda --dtype "${first##*:}" --store memory \
        --lengths "${sums_lengths%%,*}" --rounds 1 --staging 512M --methods hidden,kv,auto --csv "$parts/first-restore.csv"
    part first-save 45 $hcache bench save "${first%:*}" --device cuda --dtype "${first##*:}" --store memory $first_save_args \
        --rounds 1 --save both --arms off,save --csv "$parts/first-save.csv"
    part cpu-threads 40 cpu_threads
    [ -n "$python" ] && "$python" tools/gpu_first.py "$parts" | tee "$parts/first.txt"
}

part parity 60 $test_cuda
# shellcheck disable=SC2086 # lists of words
{
    part device-bf16 25 $hcache bench device --device cuda --dtype bf16 $device_args --csv "$parts/device-bf16.csv"
    restore dram 75 "$first"
    model=${first%:*}
    part restore-hostsums 60 env HCACHE_CHECKSUMS=host $hcache bench restore "$model" --device cuda --dtype "${first##*:}" --store memory \
        --lengths "$sums_lengths" --rounds $rounds --staging 512M --methods kv,hidden --csv "$parts/restore-${model#synth:}-hostsums.csv"
    part save 60 $hcache bench save "${first%:*}" --device cuda --dtype "${first##*:}" --store memory $save_args --save both --arms off,save,off2 --csv "$parts/save.csv"
    if [ -n "$python" ]; then
        if "${plain[@]}" "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
            part torch 50 "${plain[@]}" "$python" tools/gpu_torch.py $torch_args "$parts/torch.csv" --device $torch_device
        else
            missing torch PyTorch
        fi
        part greedy 80 "$python" tools/gpu_greedy.py $hcache models/demo models/demo/dialogues.json cuda $greedy_args "$parts/greedy.csv"
    else
        missing torch,greedy python3
    fi
    for m in $models; do
        [ "$m" = "$first" ] || restore dram 75 "$m"
    done
    restore disk 50 "${disk_models%% *}"
    part resume 45 $hcache bench resume "${first%:*}" --device cuda --dtype "${first##*:}" --store memory $resume_args --decodes 0 --csv "$parts/resume.csv"
    if command -v compute-sanitizer >/dev/null; then
        part memcheck 75 compute-sanitizer --error-exitcode 9 $test_cuda small
    else
        missing memcheck compute-sanitizer
    fi
    # Fixed math gives the same bits in every batch. These parts show what it costs, compared with
    # the parts greedy, device-bf16, restore and save.
    [ -n "$python" ] && part fixed 40 env HCACHE_CUDA_MATH=fixed "$python" tools/gpu_greedy.py $hcache models/demo models/demo/dialogues.json cuda $exact_args "$parts/fixed.csv"
    part device-fixed 25 env HCACHE_CUDA_MATH=fixed $hcache bench device --device cuda --dtype bf16 $device_args --csv "$parts/device-fixed.csv"
    part restore-fixed 60 env HCACHE_CUDA_MATH=fixed $hcache bench restore "$model" --device cuda --dtype "${first##*:}" --store memory \
        --lengths "$sums_lengths" --rounds $rounds --staging 512M --methods recompute,kv,hidden,auto --csv "$parts/restore-${model#synth:}-fixed.csv"
    part fixed-save 45 env HCACHE_CUDA_MATH=fixed $hcache bench save "${first%:*}" --device cuda --dtype "${first##*:}" --store memory $save_args --save both --arms off,off2 --csv "$parts/fixed-save.csv"
    # Early launches: these parts, compared with parity and save, show whether the results are the
    # same and how much time is saved.
    part early-parity 40 env HCACHE_CUDA_EARLY=on $test_cuda
    part early-save 45 env HCACHE_CUDA_EARLY=on $hcache bench save "${first%:*}" --device cuda --dtype "${first##*:}" --store memory $save_args --save both --arms off,off2 --csv "$parts/early-save.csv"
    part device-f16 20 $hcache bench device --device cuda --dtype f16 $device_args --csv "$parts/device-f16.csv"
    for m in $disk_models; do
        [ "$m" = "${disk_models%% *}" ] || restore disk 45 "$m"
    done
    [ -n "$python" ] && part exact 40 env HCACHE_CUDA_MATH=exact "$python" tools/gpu_greedy.py $hcache models/demo models/demo/dialogues.json cuda $exact_args "$parts/exact.csv"
    part device-exact 25 env HCACHE_CUDA_MATH=exact $hcache bench device --device cuda --dtype bf16 $device_args --csv "$parts/device-exact.csv"
    # A model of 13B parameters, on the CPU only.
    part cpu-13b 120 $hcache bench restore "$cpu_model" --store memory --lengths "$cpu_lengths" --rounds 1 --methods hidden,kv,auto,recompute \
        --csv "$parts/cpu-13b.csv"
}

{
    echo "# $gpu"
    echo
    echo "$(date -u +%F), commit $(cat build/gpu/commit 2>/dev/null || git describe --always --dirty), ${SECONDS} s in all"
    [ -z "$dry" ] && nvidia-smi --query-gpu=driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm --format=csv
    [ -z "$dry" ] && echo "cuBLAS: ${cublas:-none}; $(nproc) processors: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-)"
    echo
    cat "$parts/first.txt" 2>/dev/null
    echo
    cat "$parts/parts.txt"
    if [ -n "$python" ]; then
        "$python" tools/gpu_table.py "$parts" "$out"
    else
        cp "$parts"/*.csv "$out/" 2>/dev/null
    fi
} >"$out/table.md" 2>&1
tar -C "$parts" -czf "$out/logs.tar.gz" .
cat "$out/table.md"
exit $failed
