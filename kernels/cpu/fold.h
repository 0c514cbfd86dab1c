// Sums over rows that give the same bits for any number of threads: a fixed number of blocks of rows, each
// with its own partial sums, folded in block order. Include after loops.h, inside the region.
// No include guard on purpose: the content belongs to the region's namespace.

// Blocks of `rows` rows whose partial sums take `each` of `room` elements: at most 128, enough to balance
// and few enough to fold.
LONGREACH_INLINE int64_t fixed_blocks(int64_t rows, int64_t room, int64_t each) {
    check(each <= room, "partial sums of {} elements, room for {}", each, room);
    int64_t blocks = each > 0 ? room / each : 128;
    if (blocks > 128) blocks = 128;
    if (blocks > rows) blocks = rows;
    return blocks < 1 ? 1 : blocks;
}

// to[columns] += the blocks' partial sums, `stride` floats apart, in block order.
LONGREACH_INLINE void fold(float* to, const float* partial, int64_t blocks, int64_t stride, Range columns) {
    for_vectors(columns.end - columns.begin, [&](int64_t i, auto n) {
        const int64_t c = columns.begin + i;
        Vec sum = load(partial + c, n);
        for (int64_t b = 1; b < blocks; ++b) sum += load(partial + b * stride + c, n);
        store(to + c, load(to + c, n) + sum, n);
    });
}
