#include "simt/row_table.h"

#include <cstring>

namespace longreach::test {

// Device memory holds `stride` elements per row; the pattern between the rows has to survive.
struct Problem::Operand {
    DType type;
    int64_t rows, cols, stride;
    bool vector, written = false, read = false;
    Bound bound{};
    Floats f;                            // f32, bf16: numbers of that type
    Ints i;                              // i32
    Doubles d;                           // f64
    std::vector<unsigned char> start{};  // of the device
    std::unique_ptr<simt::DeviceArray<unsigned char>> device{};

    Operand(DType of, int64_t row_count, int64_t width, bool one_dimension, int64_t gap)
        : type(of),
          rows(row_count),
          cols(width),
          stride(cols + gap),
          vector(one_dimension),
          f(type == DType::f32 || type == DType::bf16 ? rows : 1, cols),
          i(type == DType::i32 ? rows : 1, cols),
          d(type == DType::f64 ? rows : 1, cols) {}

    Tensor view(void* memory, DType as, int64_t row_stride) const {
        if (vector) return Tensor(memory, as, {rows * cols});
        Tensor t(memory, as, {rows, cols});
        t.row_stride = row_stride;
        return t;
    }
    Tensor on_host() {
        if (type == DType::i32) return view(i.data(), type, cols);
        if (type == DType::f64) return view(d.data(), type, cols);
        return view(f.data(), DType::f32, cols);
    }
    Tensor on_device() const { return view(device->data(), type, stride); }

    void allocate() {
        constexpr unsigned char between = 0xA5, nan = 0xFF;
        const int64_t size = size_of(type);
        start.assign(static_cast<size_t>(rows * stride * size), between);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols; ++c) {
                unsigned char* to = start.data() + (r * stride + c) * size;
                if (!read)
                    std::memset(to, nan, static_cast<size_t>(size));
                else if (type == DType::f32)
                    std::memcpy(to, &f.at(r, c), 4);
                else if (type == DType::i32)
                    std::memcpy(to, &i.at(r, c), 4);
                else if (type == DType::f64)
                    std::memcpy(to, &d.at(r, c), 8);
                else if (type == DType::bf16) {
                    const bf16 narrow = __float2bfloat16(f.at(r, c));
                    std::memcpy(to, &narrow, 2);
                }
            }
        device = std::make_unique<simt::DeviceArray<unsigned char>>(start);
    }
    double value(const std::vector<unsigned char>& bytes, int64_t r, int64_t c) const {
        const unsigned char* from = bytes.data() + (r * stride + c) * size_of(type);
        const auto as = [&]<class T>(T x) {
            std::memcpy(&x, from, sizeof x);
            return x;
        };
        if (type == DType::bf16) return double{__bfloat162float(as(bf16{}))};
        if (type == DType::f32) return double{as(0.0f)};
        if (type == DType::i32) return as(int32_t{0});
        return as(0.0);
    }
    double expected(int64_t r, int64_t c) const {
        if (type == DType::i32) return i.at(r, c);
        if (type == DType::f64) return d.at(r, c);
        return double{f.at(r, c)};
    }

    // Largest error in units of the bound, infinite where an input or the memory between rows has changed.
    double compare() const {
        const std::vector<unsigned char> bytes = device->get();
        double most = 0;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < cols && written; ++c) {
                const double wanted = expected(r, c), error = std::abs(value(bytes, r, c) - wanted);
                const double rounding = type == DType::bf16 ? bf16_unit * std::abs(wanted) : 0;
                const double ratio = error == 0 ? 0 : error / (rounding + bound.steps * unit * bound.scale);
                if (!(ratio <= most)) most = std::isnan(ratio) ? infinity : ratio;
            }
        for (int64_t at = 0; at < std::ssize(bytes); ++at) {
            const bool inside = at / size_of(type) % stride < cols;
            const auto index = static_cast<size_t>(at);
            if (!(inside && written) && bytes[index] != start[index]) return infinity;
        }
        return most;
    }
    static constexpr double infinity = std::numeric_limits<double>::infinity();
};

Problem::Problem(DType type, const Shape& of, int schedules)
    : shape(of), type_(type), schedules_(schedules) {}
Problem::~Problem() = default;

int Problem::add(DType type, int64_t rows, int64_t cols, bool vector, int64_t gap) {
    operands_.push_back(std::make_unique<Operand>(type, rows, cols, vector, gap));
    return static_cast<int>(operands_.size()) - 1;
}
int Problem::fill(int operand, double scale, double offset) {
    Operand& o = *operands_[static_cast<size_t>(operand)];
    o.read = true;
    o.f = normal(o.rows, o.cols, 700 + static_cast<uint32_t>(operand), scale, offset);
    // The bounds of the table take normal numbers to be below 5, which so few of them are.
    for (int64_t k = 0; k < o.f.count(); ++k)
        REQUIRE(std::abs(double{o.f[k]} - offset) <= 5 * std::abs(scale));
    for (int64_t k = 0; o.type == DType::f64 && k < o.f.count(); ++k) o.d[k] = double{o.f[k]};
    return operand;
}
int Problem::result(int operand, Bound bound) {
    Operand& o = *operands_[static_cast<size_t>(operand)];
    o.written = true;
    o.bound = bound;
    return operand;
}

int Problem::in_of(DType type, int64_t rows, int64_t cols) {
    return fill(add(type, rows, cols, false, shape.gap), 1, 0);
}
int Problem::out_of(DType type, int64_t rows, int64_t cols, Bound bound) {
    return result(add(type, rows, cols, false, shape.gap), bound);
}
int Problem::in_out_of(DType type, int64_t rows, int64_t cols, Bound bound) {
    return result(in_of(type, rows, cols), bound);
}
int Problem::in(int64_t rows, int64_t cols, double scale, double offset) {
    return fill(add(type_, rows, cols, false, shape.gap), scale, offset);
}
int Problem::out(int64_t rows, int64_t cols, Bound bound) {
    return out_of(type_, rows, cols, bound);
}
int Problem::in_out(int64_t rows, int64_t cols, Bound bound, double scale) {
    return result(in(rows, cols, scale), bound);
}
int Problem::f32(int64_t rows, int64_t cols, double scale, double offset) {
    return fill(add(DType::f32, rows, cols, false, 0), scale, offset);
}
int Problem::f32_out(int64_t rows, int64_t cols, Bound bound) {
    return result(add(DType::f32, rows, cols, false, 0), bound);
}
int Problem::f32_in_out(int64_t rows, int64_t cols, Bound bound, double scale) {
    return result(f32(rows, cols, scale), bound);
}
int Problem::vec(int64_t count, double scale, double offset) {
    return fill(add(DType::f32, 1, count, true, 0), scale, offset);
}
int Problem::vec_out(int64_t count, Bound bound) {
    return result(add(DType::f32, 1, count, true, 0), bound);
}
int Problem::vec_in_out(int64_t count, Bound bound, double scale) {
    return result(vec(count, scale), bound);
}
int Problem::total_out(Bound bound) {
    return result(add(DType::f64, 1, 1, true, 0), bound);
}
int Problem::doubles_out(int64_t rows, int64_t cols, Bound bound) {
    return result(add(DType::f64, rows, cols, false, 0), bound);
}
int Problem::integers(const std::vector<int32_t>& values) {
    const int operand = add(DType::i32, 1, std::ssize(values), true, 0);
    Operand& o = *operands_.back();
    o.read = true;
    for (int64_t k = 0; k < o.cols; ++k) o.i[k] = values[static_cast<size_t>(k)];
    return operand;
}
int Problem::integers_out(int64_t count) {
    return result(add(DType::i32, 1, count, true, 0), {});
}
Floats& Problem::values(int operand) {
    return operands_[static_cast<size_t>(operand)]->f;
}

Tensor Problem::workspace(int64_t bytes) {
    workspaces_.push_back(std::make_unique<simt::DeviceArray<float>>(floats(bytes)));
    return test::workspace(*workspaces_.back());
}

void Problem::run(const std::function<void(Ops& cpu, const Tensors& t)>& reference,
                  const std::function<void(const Tensors& t)>& launches) {
    static const auto cpu = make_cpu_ops({.threads = 2, .isa = ""});
    Tensors on_host, on_device;
    std::vector<simt::Output> outputs;
    for (const auto& o : operands_) {
        if (o->type == DType::bf16)
            for (int64_t k = 0; k < o->f.count(); ++k) o->f[k] = rounded(o->f[k]);
        o->allocate();
        on_host.push_back(o->on_host());
        on_device.push_back(o->on_device());
        if (o->written) outputs.push_back(o->device->output());
    }
    reference(*cpu, on_host);
    const auto prepare = [&] {
        for (const auto& o : operands_) o->device->set(o->start);
    };
    simt::clear_findings();
    CHECK(simt::run_schedules(
              schedules_, prepare, [&] { launches(on_device); }, outputs) == schedules_);
    for (size_t k = 0; k < operands_.size(); ++k) {
        CAPTURE(k);
        CHECK(operands_[k]->compare() <= 1);
    }
}

}  // namespace longreach::test
