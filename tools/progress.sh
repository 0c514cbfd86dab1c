# Sourced by tools/quickstart, tools/test and tools/fuzz: runs a long command quietly and shows how far it is.
#
#   progress NAME COMMAND...   "compiling 57/226  1m04s (last time 3m10s)"
# On a terminal one line that is redrawn; in a pipe or a log a line every 15 seconds. The command's output goes to
# $progress_log; of a command that fails the end of it is shown. How long each NAME took is kept in $progress_times.

: "${progress_log:=build.log}" "${progress_times:=build/.times}"

progress_clock() { # seconds -> "1m04s"
    if [ "$1" -ge 60 ]; then printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); else printf '%ds' "$1"; fi
}

progress_done() { # how far ninja says it is: the last "[57/226]" of the log, or nothing
    tail -c 4096 "$progress_log" 2>/dev/null | tr '\r' '\n' | sed -n 's/^\[\([0-9]*\/[0-9]*\)\].*/ \1/p' | tail -1
}

progress() {
    local name=$1 status=0 start=$SECONDS shown=0 interval=15 last="" command text
    shift
    if [ -f "$progress_times" ]; then last=$(sed -n "s/^$name\t//p" "$progress_times" | tail -1); fi
    [ -z "$last" ] || last=" (last time $(progress_clock "$last"))"
    if [ -t 1 ]; then interval=1; fi
    : >"$progress_log"
    "$@" >"$progress_log" 2>&1 </dev/null &
    command=$!
    # Killed with us.
    trap 'kill "$command" 2>/dev/null; trap - INT TERM; exit 130' INT TERM
    [ -t 1 ] || echo "$name ...$last"
    while kill -0 "$command" 2>/dev/null; do
        if [ $((SECONDS - start - shown)) -ge "$interval" ]; then
            shown=$((SECONDS - start))
            text="$name$(progress_done)  $(progress_clock "$shown")$last"
            if [ -t 1 ]; then printf '\r\033[K%s' "$text"; else echo "$text"; fi
        fi
        sleep 0.2
    done
    wait "$command" || status=$?
    trap - INT TERM
    shown=$((SECONDS - start))
    if [ "$status" -ne 0 ]; then
        [ ! -t 1 ] || printf '\r\033[K'
        echo "$name failed after $(progress_clock "$shown"); from $progress_log:" >&2
        # Of a build the first failure, or it hides behind what else was being compiled.
        if grep -q '^FAILED: ' "$progress_log"; then
            sed -n '/^FAILED: /,$p' "$progress_log" | head -60 >&2
        else
            tail -30 "$progress_log" >&2
        fi
        return "$status"
    fi
    text="$name: done in $(progress_clock "$shown")"
    if [ -t 1 ]; then printf '\r\033[K%s\n' "$text"; else echo "$text"; fi
    # Less than a few seconds: nothing was left to do, which says nothing about the next time.
    if [ "$shown" -ge 5 ]; then
        mkdir -p "$(dirname "$progress_times")"
        { sed "/^$name\t/d" "$progress_times" 2>/dev/null || true; printf '%s\t%s\n' "$name" "$shown"; } >"$progress_times.new"
        mv "$progress_times.new" "$progress_times"
    fi
}
