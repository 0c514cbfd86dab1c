#!/bin/sh
# Removes the files that the last `cmake --install` wrote, and directories of longreach alone that this empties. A file that
# changed since then stays and is named.
#   uninstall.sh LIST    written by cmake/install_files.cmake.in: SHA256 or "directory", two spaces, path
set -eu
list=$1
[ -f "$list" ] || { echo "nothing to uninstall: there is no $list" >&2; exit 1; }
own=$(sed -n 's/^directory  //p' "$list")
is_own() {
    printf '%s\n' "$own" | while IFS= read -r top; do
        case "$1/" in "$top"/*) echo yes ;; esac
    done
}
removed=0
kept=0
while IFS= read -r line; do
    sum=${line%%  *}
    path=${line#*  }
    [ "$sum" != directory ] || continue
    [ -e "$path" ] || [ -L "$path" ] || continue
    if [ -L "$path" ] || [ ! -f "$path" ] || [ "$(sha256sum <"$path")" != "$sum  -" ]; then
        echo "kept, because it changed: $path"
        kept=$((kept + 1))
        continue
    fi
    rm -- "$path"
    removed=$((removed + 1))
    folder=$(dirname -- "$path")
    while [ -n "$(is_own "$folder")" ] && rmdir -- "$folder" 2>/dev/null; do folder=$(dirname -- "$folder"); done
done <"$list"
[ "$kept" -gt 0 ] || rm -- "$list"
echo "$removed files removed, $kept kept"
