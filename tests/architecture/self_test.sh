#!/usr/bin/env bash
# Plants one violation of every rule in a small tree and expects check.sh to name it; and nothing without one.
set -euo pipefail
check=$(dirname "$0")/check.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

plant_good_tree() {
    rm -rf "$tree"
    mkdir -p "$tree"/src/{base,train,report,io,config,ranks} "$tree"/kernels/{cpu,cuda}
    printf '#pragma once\n' >"$tree/src/base/error.h"
    printf '#pragma once\n#include "base/error.h"\n// asm("in a comment")\nint asmara(int);\n' >"$tree/kernels/ops.h"
    printf '#pragma once\nasm volatile("mov");\n' >"$tree/kernels/cuda/ptx.cuh"
    printf '#include "train/trainer.h"\n#include "kernels/ops.h"\n#include <vector>\n' >"$tree/src/train/trainer.cpp"
    printf '#pragma once\n' >"$tree/src/train/trainer.h"
    printf '#include "report/page.h"\n' >"$tree/src/main.cpp"
    printf '#include "train/trainer.h"\n' >"$tree/src/report/page.h"
    printf '#pragma once\n#include <nccl.h>\n' >"$tree/src/ranks/nccl_api.h"
    printf '#include "ranks/nccl_api.h"\n#include <cuda_runtime_api.h>\n' >"$tree/src/ranks/nccl_comm.cpp"
    seq -f '// line %.0f' 700 >"$tree/kernels/cpu/attention.cpp"
    git -C "$tree" init -q
}

# expect NAME EXPECTED: check.sh must fail with exactly one line, which contains EXPECTED.
expect() {
    git -C "$tree" add -A
    local output code=0
    output=$(bash "$check" "$tree" 2>&1) || code=$?
    if [[ $code -ne 1 || $(wc -l <<<"$output") -ne 1 || $output != *"$2"* ]]; then
        echo "$1: exit code $code, expected 1 and one line with: $2"
        echo "${output:-(no output)}"
        failures=$((failures + 1))
    fi
    plant_good_tree
}

plant_good_tree
git -C "$tree" add -A
bash "$check" "$tree" || { echo "the tree without a violation does not pass"; failures=1; }
rm -rf "$tree/.git"
bash "$check" "$tree" || { echo "the tree without git does not pass"; failures=1; }
plant_good_tree

printf '#include "train/trainer.h"\n' >"$tree/src/base/wrong.cpp"
expect "upward include" 'src/base/wrong.cpp:1: base must not include train ("train/trainer.h")'
printf '#pragma once\n\n  #  include "report/page.h"\n' >"$tree/src/train/wrong.h"
expect "upward include, spelled oddly" 'src/train/wrong.h:3: train must not include report'
printf 'namespace longreach {\n}\n' >"$tree/src/io/wrong.cpp"
expect "another layer's namespace" "src/io/wrong.cpp:1: opens namespace longreach; the layer's is longreach::io"
printf 'namespace longreach::io {\nstruct Cell {\n};\n}\n' >"$tree/src/io/a.cpp"
printf 'namespace longreach::io {\nclass Cell : Base {\n};\nnamespace {\nstruct Other {\n};\n}  // namespace\n}\n' >"$tree/src/io/b.cpp"
printf 'namespace longreach::io {\nclass Cell;\nnamespace {\nstruct Other {\n};\n}  // namespace\n}\n' >"$tree/src/io/c.cpp"
expect "a type defined twice" 'src/io/b.cpp:2: defines longreach::io::Cell, as src/io/a.cpp:2 does'
printf '#include "config/fields.h"\n' >"$tree/src/io/wrong.cpp"
expect "include of a sibling" 'src/io/wrong.cpp:1: io must not include config'
printf '#include "plot/chart.h"\n' >"$tree/src/train/wrong.cpp"
expect "the core includes the laboratory" 'src/train/wrong.cpp:1: train is of the core and must not include plot ("plot/chart.h")'
printf '#include "ranks/comm.h"\n#include "ranks/rendezvous.h"\n' >"$tree/src/train/wrong.cpp"
expect "the core includes the ranks' insides" 'src/train/wrong.cpp:2: the core includes comm.h, team.h and watchdog.h of ranks only'
printf '#include "eval/probe_config.h"\n#include "measure/probe.h"\n' >"$tree/src/train/wrong.cpp"
expect "training includes an evaluation" 'src/train/wrong.cpp:2: train must not include measure ("measure/probe.h")'
printf '#include "tasks/generator.h"\n' >"$tree/src/train/wrong.cpp"
expect "training includes tasks" 'src/train/wrong.cpp:1: train is of the core and must not include tasks'
printf '#include "train/trainer.h"\n' >"$tree/kernels/cpu/wrong.cpp"
expect "kernels include src" 'kernels/cpu/wrong.cpp:1: kernels must not include train'
printf '#include "base/error.h"\n#include "config/fields.h"\n' >"$tree/src/ranks/wrong.cpp"
expect "the ranks' layer includes configuration" 'src/ranks/wrong.cpp:2: ranks may include base, io and kernels only ("config/fields.h")'
mkdir "$tree/src/misc" && printf '\n' >"$tree/src/misc/wrong.h"
expect "new layer" "src/misc/wrong.h: 'misc' is no layer"
printf '#include "trainer.h"\n' >"$tree/src/train/wrong.cpp"
expect "include without its layer" 'src/train/wrong.cpp:1: includes "trainer.h", which starts with no layer'
printf '#include <cuda_runtime.h>\n' >>"$tree/kernels/ops.h"
expect "CUDA header behind another header" 'kernels/ops.h:5:#include <cuda_runtime.h> is a CUDA header, reachable from src/train/'
printf '#include <nccl.h>\n' >"$tree/src/train/wrong.cpp"
expect "CUDA header in src" 'src/train/wrong.cpp:1:#include <nccl.h> is a CUDA header'
printf '#include "ranks/nccl_api.h"\n' >"$tree/src/train/wrong.cpp"
expect "the communicator's table of functions elsewhere" 'src/train/wrong.cpp:1:#include "ranks/nccl_api.h" is a CUDA header'
printf '#pragma once\n#include <cuda_runtime_api.h>\n' >"$tree/kernels/cuda/runtime.h"
printf '#include "kernels/cuda/runtime.h"\n' >>"$tree/src/ranks/nccl_comm.cpp"
expect "the communicator includes the backend" 'kernels/cuda/runtime.h:2:#include <cuda_runtime_api.h> is a CUDA header, reachable from src/ranks/'
seq -f '// line %.0f' 601 >"$tree/src/train/long.cpp"
expect "long file" 'src/train/long.cpp: 601 lines'
{
    echo 'int long_one(int a,'
    echo '             int b) {'
    seq -f '    use(%.0f);' 120
    echo '}'
} >"$tree/src/train/long.cpp"
expect "long function" 'src/train/long.cpp:2: long_one has 121 lines; at most 100'
printf 'struct Type {\n    void wide(int a, Map<int, int> b, int c, int d, int e, int f, int g, int h,\n              int i) const;\n};\n' >"$tree/src/train/wide.h"
expect "many parameters" 'src/train/wide.h:3: wide has 9 parameters; at most 8'
mkdir -p "$tree/tests/architecture"
printf 'src/train/gone.cpp gone lines 120\n' >"$tree/tests/architecture/exceptions.txt"
expect "an exception that is none now" 'gone lines 120: it is 0 now'
long='// words that fill a line up to the last of its one hundred and ten columns, so that nothing else will fit'
printf '%s\n// here.\n' "$long" >"$tree/src/train/wrong.cpp"
expect "fragment of a comment" 'src/train/wrong.cpp:2: a comment ends in a fragment'
printf 'int x;  %s\n        // here or there.\n' "${long:0:100}" >"$tree/src/train/wrong.cpp"
expect "fragment of a comment behind code" 'src/train/wrong.cpp:2: a comment ends in a fragment'
printf '// --- heading\n// %s\n' "$(printf -- '-%.0s' {1..100})" >"$tree/src/train/wrong.cpp"
expect "rule below its heading" 'src/train/wrong.cpp:2: a comment ends in a fragment'
printf '// a short line\n// here\n%s\n// and four words below\n//   cell  here\n' "$long" >"$tree/src/train/fine.cpp"
printf '\n#include "report/page.h"\n' >"$tree/src/train/wrong.h"
expect "no fragments" 'src/train/wrong.h:2: train must not include report'
head -c 1048577 /dev/zero >"$tree/blob.bin"
expect "large file" 'blob.bin: 1048577 bytes'
printf 'void f() {\n    __asm__ volatile ("nop");\n}\n' >"$tree/kernels/cpu/wrong.cpp"
expect "assembly" 'kernels/cpu/wrong.cpp:2: inline assembly'
rm -rf "$tree"/src "$tree"/kernels && printf '\n' >"$tree/README.md"
expect "nothing to check" 'nothing was checked'

[[ $failures -eq 0 ]] || exit 1
echo "every planted violation was found"
