#!/usr/bin/env bash
# How the program was linked: hardened, and without libraries that another machine may lack. Prints one line per
# violation; exit code 1 if there is any.
#
#   binary.sh PROGRAM [--static]
#
# --static: only the C library may be needed from outside.
set -euo pipefail
LC_ALL=C
program=$1
violations=0
violation() {
    echo "$program: $1"
    violations=$((violations + 1))
}

header=$(readelf -hW "$program")
segments=$(readelf -lW "$program")
dynamic=$(readelf -dW "$program")
symbols=$(readelf -sW --dyn-syms "$program")
grep -q 'Type: *DYN' <<<"$header" || violation "not position independent (PIE)"
grep -q 'FLAGS_1.*PIE' <<<"$dynamic" || violation "not linked as a program (-pie)"
grep -q 'GNU_RELRO' <<<"$segments" || violation "no GNU_RELRO segment (-z relro)"
grep -q 'BIND_NOW\|FLAGS_1.*NOW' <<<"$dynamic" || violation "symbols are bound late, so RELRO is partial (-z now)"
grep -q 'GNU_STACK.* RW ' <<<"$segments" || violation "the stack is executable"
grep -q '__stack_chk_fail' <<<"$symbols" || violation "no stack protector (-fstack-protector-strong)"
grep -aq '__n < this->size()' "$program" || violation "no assertions of the C++ library (-D_GLIBCXX_ASSERTIONS)"
grep -q '_chk@' <<<"$symbols" || violation "no checked library calls (-D_FORTIFY_SOURCE)"
if grep 'R.\?PATH' <<<"$dynamic" | sed 's/.*\[\(.*\)\].*/\1/' | tr : '\n' | grep -qv '^\$ORIGIN\(/\|$\)'; then
    violation "libraries are looked for at a path of the build machine"
fi
if [ "${2:-}" = --static ]; then
    for library in $(sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' <<<"$dynamic"); do
        case "$library" in
            libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux*) ;;
            *) violation "needs $library" ;;
        esac
    done
fi
[ "$violations" -eq 0 ]
