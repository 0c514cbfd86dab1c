#!/usr/bin/env bash
# The report in a browser: page_test.sh WRITE_SAMPLE CHECKS_JS. Exit code 77 (skipped) where there is no chromium.
set -euo pipefail
writer=$1 checks=$2 hostile_checks=$(dirname "$2")/hostile_checks.js reload_checks=$(dirname "$2")/reload_checks.js

browser=""
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then browser=$name; break; fi
done
if [ -z "$browser" ]; then
    echo "skipped: no chromium here (tools/setup --tests installs it)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$writer" "$work/sample"

# Nothing that a browser would fetch: the only addresses are the names of SVG's namespace.
page=$work/sample/report.html
if grep -oE '<(link|script|img|iframe|object|embed|use|image)[^>]*(src|href)="[^"]*"' "$page" | grep -v 'href="data:,"'; then
    echo "the page refers to something outside it"
    exit 1
fi

# Checks run in a page before its own script and its policy, at two widths; their verdicts go to the page around them.
with_checks() { # page, checks
    sed -n '1,/<html/s/<head>.*/<head><script>/p' "$1" | head -2
    cat "$2"
    printf '</script>'
    sed '1d;s/^<html lang="en"><head>//' "$1"
}
with_checks "$page" "$checks" >"$work/checked.html"
for name in hostile hostile-run run; do
    with_checks "$work/sample/$name.html" "$hostile_checks" >"$work/$name.html"
done
with_checks "$work/sample/watched.html" "$reload_checks" >"$work/watched.html"
verdict() { # scheme (0 dark, 1 light), its name
    cat >"$work/frames.html" <<END
<!doctype html><meta charset="utf-8"><pre id="verdict"></pre>
<script>
let open = 7;
addEventListener('message', e => {
  const list = e.data.failures.map(f => 'FAILED ' + e.data.frame + ' ' + f + '\n').join('');
  document.getElementById('verdict').textContent += list + 'DONE ' + e.data.frame + '\n';
  if (--open === 0) document.getElementById('verdict').textContent += 'END';
});
</script>
<iframe style="border:0;width:360px;height:740px;color-scheme:$2" src="checked.html#$2-360"></iframe>
<iframe style="border:0;width:1200px;height:900px;color-scheme:$2" src="checked.html#$2-1200"></iframe>
<iframe style="border:0;width:360px;height:740px" src="hostile.html#hostile-360"></iframe>
<iframe style="border:0;width:1200px;height:900px" src="hostile.html#hostile-1200"></iframe>
<iframe style="border:0;width:360px;height:740px" src="hostile-run.html#hostile-run"></iframe>
<iframe style="border:0;width:360px;height:740px" src="run.html#run"></iframe>
<iframe style="border:0;width:1200px;height:900px" src="watched.html#watched"></iframe>
END
    timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
        --user-data-dir="$work/profile" --host-resolver-rules="MAP * ~NOTFOUND" --window-size=1400,1000 \
        --blink-settings=preferredColorScheme="$1" --enable-logging=stderr --v=0 --virtual-time-budget=20000 \
        --dump-dom "file://$work/frames.html" >"$work/dom" 2>"$work/log"
}
failed=0
for scheme in "0 dark" "1 light"; do
    # shellcheck disable=SC2086
    verdict $scheme || { echo "the browser failed:"; tail -5 "$work/log"; exit 1; }
    sed -n '/<pre id="verdict">/,/<\/pre>/p' "$work/dom" >"$work/verdict"
    grep -o 'FAILED #.*' "$work/verdict" && failed=1
    if [ "$(grep -c 'DONE #' "$work/verdict")" -ne 7 ] || ! grep -q '^END' "$work/verdict"; then
        echo "the checks did not end under: $scheme"
        failed=1
    fi
    # The checks provoke a refusal of the policy on purpose.
    if grep CONSOLE "$work/log" | grep -vE "(Refused to execute|Executing) inline (script|event handler).*checked.html"; then
        echo "messages on the console under: $scheme"
        failed=1
    fi
done
[ $failed -eq 0 ] && echo "the report passes in light and dark, at 360 and 1200 pixels"
exit $failed
