#!/usr/bin/env bash
# Copies programs and the shared libraries that a bare machine may lack (all but the C library's
# own) into FOLDER, and packs it as FOLDER.tar.gz, half as large.  Either travels with the tree.
#   tools/gpu_bundle.sh FOLDER PROGRAM...
set -euo pipefail
to=$1
shift
rm -rf "$to"
mkdir -p "$to/lib"
for program; do
    cp -L "$program" "$to/"
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
        grep -vE '/(libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libnsl|ld-linux[^/]*|libgcc_s)\.so' | xargs -r cp -L -t "$to/lib"
done
git describe --always --dirty >"$to/commit"
strip --strip-debug "$to"/* 2>/dev/null || true
tar -C "$(dirname "$to")" -czf "$to.tar.gz" "$(basename "$to")"
du -sh "$to" "$to.tar.gz"
