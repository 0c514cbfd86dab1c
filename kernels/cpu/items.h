// Loops on the threads of a CpuOps. Include inside the instruction-set region.
// No include guard on purpose: the content belongs to the region's namespace.

// Elements that one turn of a thread takes, about 5 to 20 us of a row kernel: more than taking a turn costs, less than
// a thread would miss when the kernel takes its core. A loop of fewer elements stays on its thread.
inline constexpr int64_t turn_elements = 1 << 14;

// body(i) for i in [0, count), items of about `size` elements each, on the pool's threads.
template <class Body>
void for_items(Pool& pool, int64_t count, int64_t size, Body body) {
    const int64_t items = size < turn_elements ? turn_elements / (size < 1 ? 1 : size) : 1;
    pool.run((count + items - 1) / items, [&](int64_t turn, int) {
        const int64_t begin = turn * items, end = begin + items < count ? begin + items : count;
        for (int64_t i = begin; i < end; ++i) body(i);
    });
}
