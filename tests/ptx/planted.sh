#!/usr/bin/env bash
# Faults planted in the PTX that nvcc emitted, one at a time; a test has to fail at each.
#   planted.sh PTX_DIRECTORY TEST_OF_ATTENTION TEST_OF_ROWS TEST_OF_PRODUCTS TEST_OF_STICKS TEST_OF_MUON TEST_OF_DELTA
set -euo pipefail
ptx=$(realpath "$1") attention=$2 rows=$3 products=$4 sticks=$5 muon=$6 delta=$7
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missed=0

# plant NAME SOURCE TEST EXPRESSION: the fault is what `sed -E EXPRESSION` makes of SOURCE.ptx.
plant() {
    local name=$1 source=$2 test=$3 expression=$4
    rm -rf "$work/ptx"
    mkdir "$work/ptx"
    ln -s "$ptx"/*.ptx "$work/ptx"
    rm "$work/ptx/$source.ptx"
    sed -E "$expression" "$ptx/$source.ptx" > "$work/ptx/$source.ptx"
    if cmp -s "$ptx/$source.ptx" "$work/ptx/$source.ptx"; then
        echo "$name: the expression changes nothing in $source.ptx"
        missed=1
    elif LONGREACH_HOPPER=$hopper LONGREACH_PTX="$work/ptx" "$test" -aa=1 -tc="$cases" > "$work/log" 2>&1; then
        echo "$name: NOT found"
        missed=1
    elif grep -qE 'cannot read|no PTX of' "$work/log"; then
        echo "$name: the test did not get as far as the PTX"
        missed=1
    else
        echo "$name: found: $(grep -m1 -oE 'THREW exception: .*|values: .*|terminate.*' "$work/log" | cut -c1-150)"
    fi
}

registers='%[a-z]+[0-9]+'
cases='*'
hopper=0 # the kernels that all devices have
plant "two registers of A exchanged" attention_forward "$attention" \
    "s/(mma[^{]*\{[^}]*\}, *\{)($registers), ($registers), ($registers)/\1\2, \4, \3/"
plant "the registers of B exchanged" attention_forward "$attention" \
    "s/(mma[^{]*\{[^}]*\}, *\{[^}]*\}, *\{)($registers), ($registers)\}/\1\3, \2}/"
plant "the sum of a product forgotten" attention_backward "$attention" \
    "s/(mma[^{]*\{)($registers)(, [^}]*\}, .*, *\{)($registers), ($registers)(, $registers, $registers\})/\1\2\3\5, \4\6/"
plant "ldmatrix without .trans" attention_forward "$attention" "s/(ldmatrix[a-z0-9.]*)\.trans/\1/"
plant "ldmatrix with .trans" attention_backward "$attention" "s/(ldmatrix.sync.aligned.m8n8.x4)\.shared/\1.trans.shared/"
plant "a copy of 12 of 16 bytes" attention_forward "$attention" \
    "s/(cp.async.cg.shared.global \[[^]]*\], \[[^]]*\], 16), $registers/\1, 12/"
plant "a copy of 8 bytes" attention_forward "$attention" \
    "s/(cp.async.cg.shared.global \[[^]]*\], \[[^]]*\]), 16, $registers/\1, 8, 8/"
plant "a wait for one group fewer" attention_forward "$attention" "s/cp.async.wait_group 0;/cp.async.wait_group 1;/"
plant "no wait at all" attention_backward "$attention" "s/cp.async.wait_group [0-9];//"
plant "a barrier less" attention_forward "$attention" "s/bar.sync[^;]*;//"
# Of pairs of warps with 32 rows: bf16, 128 channels, plain scores.
cases='*128 channels*'
keys='/entry .*10key_kernelI13__nv_bfloat16Li128ELNS0_9ScoreModeE0/,/^}/'
queries='/entry .*12query_kernelI13__nv_bfloat16Li128ELNS0_9ScoreModeE0/,/^}/'
plant "a pair of keys' warps: dP taken before it is there" attention_backward "$attention" "$keys s/bar.sync[ \t]+[12],[^;]*;//"
plant "a pair of keys' warps: dS taken before it is there" attention_backward "$attention" "$keys s/bar.sync[ \t]+[34],[^;]*;//"
plant "a pair of keys' warps: neighbours exchanged in what is handed over" attention_backward "$attention" \
    "$keys s/(st.shared.v2.f32[^{]*\{)($registers), ($registers)/\1\3, \2/"
plant "a pair of keys' warps: dS of another place" attention_backward "$attention" \
    "$keys s/(ld.shared.u32[^+]*\+)4224\]/\14352]/"
plant "a pair of keys' warps: queries and dO read along the other dimension" attention_backward "$attention" \
    "$keys s/(ldmatrix[a-z0-9.]*)\.trans/\1/"
plant "a pair of queries' warps: dP taken before it is there" attention_backward "$attention" "$queries s/bar.sync[ \t]+[12],[^;]*;//"
plant "a pair of queries' warps: dS taken before it is there" attention_backward "$attention" "$queries s/bar.sync[ \t]+[34],[^;]*;//"
plant "a pair of queries' warps: delta added" attention_backward "$attention" "$queries s/sub.f32/add.f32/"
plant "a pair of queries' warps: dP put where that of other rows is" attention_backward "$attention" \
    "$queries s/(st.shared.v2.f32[^+]*\+)256\]/\1512]/"
cases='*'
plant "a register that nobody writes" norm "$rows" "0,/mov.f32[^;]*0f00000000;/s/mov.f32[^;]*0f00000000;//"
plant "another lane of a shuffle" norm "$rows" "s/shfl.sync.bfly/shfl.sync.up/"
plant "a comparison turned" loss "$rows" "s/setp.gt.f32/setp.lt.f32/"
plant "an unsigned shift" embedding "$rows" "s/shr.u32/shl.b32/"
cases='*parameters and tables*'
plant "Adam: no root of the second moment" optimizer "$rows" "s/sqrt.rn.f32/mov.f32/"
cases='*muon in f32*'
plant "Muon: a step the other way" muon "$muon" "s/sub.f32/add.f32/"
plant "Muon: a tile read before it is turned" muon "$muon" "s/bar.sync[^;]*;//"
cases='*the stick*,stick-breaking*'
plant "sticks: what is left taken from the other side" stick_breaking_forward "$sticks" "s/shfl.sync.down/shfl.sync.up/"
plant "sticks: another lane of a shuffle backward" stick_breaking_backward "$sticks" "s/shfl.sync.bfly/shfl.sync.up/"
plant "sticks: a comparison turned in decoding" stick_breaking_decode "$sticks" "s/setp.ge.f32/setp.lt.f32/"
plant "sticks: statistics of the smaller" stick_breaking_statistics "$sticks" "s/max.f32/min.f32/"
cases='*agrees with its recurrence*'
plant "delta gradients: ldmatrix without .trans" delta_chunks_gradients "$delta" "s/(ldmatrix[a-z0-9.]*)\.trans/\1/"
plant "delta gradients: no wait for copies" delta_chunks_gradients "$delta" "s/cp.async.wait_group [0-9];//"
plant "delta gradients: another lane of a shuffle" delta_chunks_gradients "$delta" "s/shfl.sync.bfly/shfl.sync.up/"
cases='*'

hopper=1
plant "Hopper: values read along the other dimension" attention_forward_sm90 "$attention" \
    "s/(wgmma.mma_async.*n128k16.*), 1;/\1, 0;/"
plant "Hopper: products that add where they set, and the reverse" attention_backward_sm90 "$attention" \
    "s/setp.ne.b32 p, ($registers), 0;/setp.eq.b32 p, \1, 0;/"
plant "Hopper: a wait for one group fewer" attention_forward_sm90 "$attention" "s/wgmma.wait_group.sync.aligned 0;/wgmma.wait_group.sync.aligned 1;/"
plant "Hopper: no fence between threads and the copy engine" attention_backward_sm90 "$attention" "s/fence.proxy.async.shared::cta;//"
plant "Hopper: bytes that nobody announced" attention_forward_sm90 "$attention" \
    "s/mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, \[($registers)\], $registers;/mbarrier.arrive.release.cta.shared::cta.b64 _, [\1];/"
plant "Hopper: no fence before the first product" attention_backward_sm90 "$attention" "s/wgmma.fence.sync.aligned;//"

plant "products: a right side read along the other dimension" relu2_sm90 "$products" \
    "s/(wgmma.mma_async.*n256k16.*), 0, 1;/\1, 0, 0;/"
plant "products: descriptors without the swizzle" relu2_sm90 "$products" "s/4611686293305360384/274877972480/"
plant "products: sums that go on where a tile begins" relu2_sm90 "$products" \
    "s/setp.ne.b32 p, ($registers), 0;/setp.eq.b32 p, \1, \1;/"
plant "products: the phase of a barrier not turned" relu2_sm90 "$products" "s/(try_wait[^;]*\], )$registers;/\10;/"
plant "products: no fence before the first product" relu2_sm90 "$products" "s/wgmma.fence.sync.aligned;//"
plant "products: sums read before the last products" relu2_sm90 "$products" \
    "s/wgmma.wait_group.sync.aligned 0;/wgmma.wait_group.sync.aligned 1;/"
plant "products: a stage given back under its products" relu2_sm90 "$products" \
    "s/wgmma.wait_group.sync.aligned 1;/wgmma.wait_group.sync.aligned 2;/"
plant "products: no fence between threads and the copy engine" relu2_sm90 "$products" "s/fence.proxy.async.shared::cta;//"
plant "products: an output's place not waited for" relu2_sm90 "$products" "s/cp.async.bulk.wait_group.read 0;//"
plant "products: bytes that nobody announced" relu2_sm90 "$products" \
    "s/mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, \[($registers)\], $registers;/mbarrier.arrive.release.cta.shared::cta.b64 _, [\1];/"
plant "products: rows and columns of an output exchanged" relu2_sm90 "$products" \
    "s/(bulk_group \[$registers, \{)($registers), ($registers)/\1\3, \2/"
plant "products: the square of a negative sum" relu2_sm90 "$products" "s/setp.le.f32/setp.gt.f32/"
exit $missed
