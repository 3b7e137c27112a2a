#!/usr/bin/env bash
# Builds llama.cpp from the source distribution of llama-cpp-python, for compare.py; development only.
#   tools/compare_llama/build.sh [DIR] [CMAKE_OPTION...]      DIR: .venv/llama
#   tools/compare_llama/build.sh .venv/llama-avx2 -DGGML_NATIVE=OFF      for AVX2, FMA and F16C only
# Leaves DIR/venv (numpy, gguf), DIR/build/bin/{llama-bench,llama-quantize,llama-server} and DIR/logits.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/../../.venv/llama}
[ $# -eq 0 ] || shift
mkdir -p "$dir"
cd "$dir"
for tool in cmake ninja g++ python3; do
    command -v "$tool" >/dev/null || { echo "build: $tool is missing (apt: cmake ninja-build g++ python3-venv)" >&2; exit 1; }
done
[ -x venv/bin/python ] || python3 -m venv venv
venv/bin/pip install -q numpy gguf
[ -n "$(ls sdist/*.tar.gz 2>/dev/null)" ] ||
    venv/bin/pip download -q --no-deps --no-binary :all: llama-cpp-python -d sdist
[ -d source ] || { mkdir source && tar xzf sdist/*.tar.gz -C source --strip-components 1; }
src=source/vendor/llama.cpp

# gcc before 13 declares that the intrinsic reads only 8 of the 64 bytes that ldtilecfg reads. So
# the compiler drops the stores to the other bytes, and q8_0 ends with a segmentation fault on CPUs
# with AMX.
mmq=$src/ggml/src/ggml-cpu/amx/mmq.cpp
grep -q '"memory"); _tile_loadconfig' "$mmq" ||
    sed -i 's/_tile_loadconfig(&\([a-z_]*\));/__asm__ volatile("" : : "r"(\&\1) : "memory"); _tile_loadconfig(\&\1);/' "$mmq"

cmake -G Ninja -S "$src" -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF "$@" >cmake.log
ninja -C build llama-bench llama-quantize llama-server >build.log || { tail -20 build.log >&2; exit 1; }
g++ -O2 -std=c++17 -I "$src/include" -I "$src/ggml/include" "$here/logits.cpp" build/src/libllama.a \
    build/ggml/src/libggml.a build/ggml/src/libggml-cpu.a build/ggml/src/libggml-base.a -fopenmp -ldl -lpthread -o logits
echo "llama.cpp is built in $PWD"
