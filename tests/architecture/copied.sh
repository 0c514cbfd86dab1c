#!/usr/bin/env bash
# The program alone, copied to another directory and started there with an empty environment; as root in a root directory
# that holds nothing but it and the C library's files, as on a machine where nothing else is installed.
#
#   copied.sh PROGRAM
set -euo pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cp "$1" "$root/program"
run=(env -i "$root/program")
if [ "$(id -u)" -eq 0 ] && command -v chroot >/dev/null; then
    for library in $(ldd "$root/program" | grep -o '/[^ )]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
    run=(env -i "$(command -v chroot)" "$root" /program)
fi
"${run[@]}" --version | grep -q '^longreach [0-9]'
"${run[@]}" config explain model.width | grep -q width
