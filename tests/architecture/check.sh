#!/usr/bin/env bash
# Rules of the source tree that no compiler checks. Prints one line per violation; exit code 1 if there is any.
#
#   check.sh ROOT
#
# Needs only bash, git and the usual text tools. In a tree without git every file counts as tracked.
set -euo pipefail
LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$1"

violations=0
violation() {
    echo "$1"
    violations=$((violations + 1))
}

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    mapfile -t files < <(git ls-files --cached | while IFS= read -r f; do [[ -f $f ]] && echo "$f"; done)
else
    mapfile -t files < <(find . -type f -not -path './build*' -printf '%P\n' | sort)
fi
sources=()
for f in "${files[@]}"; do
    [[ $f =~ ^(src|kernels|tests)/.*\.(cpp|h|cu|cuh)$ ]] && sources+=("$f")
done
[[ ${#sources[@]} -gt 0 ]] || violation "no sources under $PWD: nothing was checked"

of_sources() { # a command with all sources as its last arguments
    [[ ${#sources[@]} -eq 0 ]] || printf '%s\0' "${sources[@]}" | xargs -0 "$@" || true
}

# --- layers: a file may include its own layer and those with a smaller number ------------------------------------
declare -A layer=([base]=0 [config]=1 [decide]=1 [io]=1 [tokenizer]=1 [kernels]=1 [law]=2 [data]=2 [model]=3 [mixers]=4 [tasks]=3 [optim]=4 [ranks]=3 [theory]=4 [eval]=5 [measure]=6 [serve]=6 [table]=1 [plot]=2 [text]=3 [train]=6 [lab]=7
                  [sweep]=7 [report]=8 [exchange]=7 [commands]=9 [main.cpp]=10)
# What trains and scores, and the folders that it must not know.
core=' base config io law model mixers data optim eval train '
around=' measure sweep tasks theory report plot table lab text exchange serve '
layer_of() { # sets `own`, of a path of this repository; empty for one that has none
    own=${1#src/}
    own=${own%%/*}
}
# FILE, line and path of every #include "path" of every source.
declare -A includes # FILE: lines of "line path"
while IFS=$'\t' read -r f line path; do
    includes[$f]+="$line $path"$'\n'
done < <(of_sources awk -v OFS='\t' '
    /^[ \t]*#[ \t]*include[ \t]*"[^"]+"/ { split($0, part, "\""); print FILENAME, FNR, part[2] }')
for f in "${sources[@]}"; do
    [[ $f == tests/* ]] && continue
    layer_of "$f"
    if [[ -z ${layer[$own]:-} ]]; then
        violation "$f: '$own' is no layer known to tests/architecture"
        continue
    fi
    while read -r line path; do
        [[ -n $path ]] || continue
        other=${path%%/*}
        # The dialect's other half, for the compiler that has no GPU.
        [[ $f == kernels/cuda/* && $other == simt ]] && continue
        if [[ -z ${layer[$other]:-} ]]; then
            violation "$f:$line: includes \"$path\", which starts with no layer; write the path from src/ or the root"
        elif [[ $other != "$own" && ${layer[$other]} -ge ${layer[$own]} ]]; then
            violation "$f:$line: $own must not include $other (\"$path\")"
        elif [[ $own == tasks && $other == model ]]; then
            violation "$f:$line: tasks make samples for any model and include none (\"$path\")"
        elif [[ $core == *" $own "* && $around == *" $other "* ]]; then
            violation "$f:$line: $own is of the core and must not include $other (\"$path\")"
        elif [[ $core == *" $own "* && $other == ranks && ! $path =~ ^ranks/(comm|team|watchdog|nccl_api)\.h$ ]]; then
            violation "$f:$line: the core includes comm.h, team.h and watchdog.h of ranks only (\"$path\")"
        elif [[ $own == kernels && $other != kernels && $other != base ]]; then
            violation "$f:$line: kernels may include base only (\"$path\")"
        elif [[ $own == ranks && $other != ranks && $other != base && $other != io && $other != kernels ]]; then
            violation "$f:$line: ranks may include base, io and kernels only (\"$path\")"
        fi
    done <<<"${includes[$f]:-}"
done

# --- one namespace per layer, but mixers are of the model (base and the kernels' contract are the vocabulary of all), and in a namespace one definition
# of a type's name: a second one in another file links, and calls the wrong destructor ---------------------------------
declare -A defined_in
while IFS=$'\t' read -r kind f line name; do
    if [[ $kind == namespace ]]; then
        layer_of "$f"
        [[ $own == mixers ]] && own=model
        [[ $f == src/*/* && $own != base ]] || continue
        [[ $name == "longreach::$own" || $name == "longreach::$own::"* ]] ||
            violation "$f:$line: opens namespace $name; the layer's is longreach::$own"
    elif [[ -n ${defined_in[$name]:-} ]]; then
        violation "$f:$line: defines $name, as ${defined_in[$name]} does"
    else
        defined_in[$name]=$f:$line
    fi
done < <(printf '%s\0' "${sources[@]}" | { grep -zv '^tests/' || true; } | xargs -0 -r awk -v OFS='\t' '
    FNR == 1 { space = ""; anonymous = 0 }
    /^namespace \{/ { anonymous = 1 }
    /^\} *\/\/ namespace$/ { anonymous = 0 }
    /^namespace longreach[a-zA-Z_:]* \{/ { space = $2; print "namespace", FILENAME, FNR, space }
    /^(struct|class|union|enum|enum class) [A-Za-z_]+( |$)/ && !/;$/ && !anonymous {
        name = $1 == "enum" && $2 == "class" ? $3 : $2
        print "type", FILENAME, FNR, space "::" name
    }')

# --- no CUDA header is reachable from src/, but by the communicator between GPUs, whose own header is plain C++ ----
gpu_communicator=' src/ranks/nccl_api.h src/ranks/nccl_api.cpp src/ranks/nccl_comm.cpp '
declare -A reached_from cuda_headers # FILE: lines of "line:text"
while IFS= read -r hit; do
    cuda_headers[${hit%%:*}]+="${hit#*:}"$'\n'
done < <(of_sources grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"](cuda[a-z_0-9]*\.h|cuda_[^">]*|cuda/[^">]*|cub/[^">]*|cublas[^">]*|nccl[^">]*|ranks/nccl_api\.h|mma\.h|[^">]*\.cuh)[">]')
queue=()
for f in "${sources[@]}"; do
    [[ $f == src/* ]] && queue+=("$f") && reached_from[$f]=$f
done
for ((next = 0; next < ${#queue[@]}; ++next)); do
    f=${queue[$next]}
    while IFS= read -r hit; do
        [[ -z $hit || $gpu_communicator == *" $f "* ]] && continue
        violation "$f:$hit is a CUDA header, reachable from ${reached_from[$f]}"
    done <<<"${cuda_headers[$f]:-}"
    while read -r _ path; do
        for candidate in "src/$path" "$path"; do
            if [[ -n $path && -f $candidate && -z ${reached_from[$candidate]:-} ]]; then
                reached_from[$candidate]=${reached_from[$f]}
                queue+=("$candidate")
            fi
        done
    done <<<"${includes[$f]:-}"
done

# --- sizes ---------------------------------------------------------------------------------------------------------
while read -r lines f; do
    [[ $f == total || $f =~ ^kernels/.*attention ]] && continue # tiles, masks and both directions belong together
    [[ $lines -le 600 ]] || violation "$f: $lines lines; at most 600, or a reader loses the thread"
done < <(of_sources wc -l)
while read -r bytes f; do
    [[ $f == total || $bytes -le 1048576 ]] || violation "$f: $bytes bytes; a repository of sources has no file above 1 MiB"
done < <(printf '%s\0' "${files[@]}" | xargs -0 wc -c)

# --- functions: at most 100 lines and eight parameters. exceptions.txt lists those that have more, and how many; a row
# whose function has fewer now says so with its number, or goes. -----------------------------------------------------
exceptions=tests/architecture/exceptions.txt
while IFS= read -r hit; do violation "$hit"; done < <(
    of_sources awk -F'\t' -v OFS='\t' -f "$here/functions.awk" |
        awk -F'\t' -v exceptions="$exceptions" '
        function check(what, limit, value,    key) {
            key = $1 " " $3 " " what
            if (value <= limit) return
            if (value > most[key] + 0) most[key] = value
            if (!(key in listed) || value > listed[key])
                print $1 ":" $2 ": " $3 " has " value " " what "; at most " (key in listed ? listed[key] : limit)
        }
        BEGIN {
            while ((getline row < exceptions) > 0)
                if (row !~ /^(#|$)/ && split(row, part, " ") == 4) listed[part[1] " " part[2] " " part[3]] = part[4]
        }
        { check("lines", 100, $4); check("parameters", 8, $5) }
        END {
            for (key in listed)
                if (listed[key] != most[key] + 0)
                    print exceptions ": " key " " listed[key] ": it is " most[key] + 0 " now; lower the number or drop the row"
        }')

# --- torn comments: a line of one to three words under a full one, as a formatter leaves it behind; or a rule of dashes
# that came off its heading. A cell of a table, with two spaces inside, and a long name are none. -----------------------
while IFS= read -r hit; do
    violation "$hit: a comment ends in a fragment; rewrite it or break its lines earlier"
done < <(of_sources awk -v limit=110 '
    FNR == 1 { above = 0 }
    {
        column = index($0, "//")
        text = substr($0, column + 2)
        fragment = column && column == above && substr($0, 1, column - 1) ~ /^ *$/ && text !~ /[^ ]  / &&
                   split(text, words, " ") >= 1 && !(4 in words) &&
                   (length(text) <= 40 || words[1] ~ /^----/) && width + 1 + length(words[1]) > limit
        if (fragment) print FILENAME ":" FNR
        above = column
        width = length($0)
    }')

# --- inline assembly: only in the headers whose every instruction has a twin that runs on a CPU, and in the switch of
# the harness that runs them -------------------------------------------------------------------------------------------
while IFS=: read -r f line _; do
    [[ $f == kernels/cuda/ptx?(_sm90).cuh || $f == tests/simt/fibre.cpp ]] && continue
    violation "$f:$line: inline assembly outside kernels/cuda/ptx.cuh and ptx_sm90.cuh"
done < <(of_sources grep -HnE '^([^/]|/[^/])*(^|[^A-Za-z0-9_])(asm|__asm|__asm__)[[:space:]]*((volatile|__volatile__|goto|inline)[[:space:]]*)*[({]')

[[ $violations -eq 0 ]] || exit 1
