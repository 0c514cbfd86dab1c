#include "model/param_table.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/rng.h"

namespace longreach::model {

namespace {
constexpr int64_t alignment = 16;  // elements: 64 bytes

int64_t aligned(int64_t n) {
    return (n + alignment - 1) / alignment * alignment;
}
}  // namespace

const char* name_of(ParamGroup group) {
    switch (group) {
        case ParamGroup::matrix:
            return "matrix";
        case ParamGroup::embedding:
            return "embedding";
        case ParamGroup::head:
            return "head";
        case ParamGroup::scalar:
            return "scalar";
    }
    return "?";
}

ParamRef ParamTable::add(Param param) {
    return add_joined({std::move(param)});
}

ParamRef ParamTable::add_joined(std::vector<Param> parts) {
    size_ = aligned(size_);
    ParamRef joined{size_, 0, parts.front().cols(), parts.front().of_product()};
    for (Param& param : parts) {
        check(find(param.name) == nullptr, "two parameters named {}", param.name);
        check(param.cols() == joined.cols && param.of_product() == joined.of_product,
              "{} has {} columns and group {}, others joined with it {} and {}", param.name, param.cols(),
              name_of(param.group), joined.cols, name_of(parts.front().group));
        param.offset = size_;
        size_ += param.count();
        joined.rows += param.rows();
        params_.push_back(std::move(param));
    }
    if (joined.of_product) products_.push_back(joined);
    return joined;
}

ParamRef ParamTable::share(Param param) {
    const Param* known = find(param.name);
    if (known == nullptr) return add(std::move(param));
    check(known->shape == param.shape, "{} is shared in two shapes", param.name);
    check(!known->of_product(), "{} is shared, and two products would set its gradient", param.name);
    return {known->offset, known->rows(), known->cols()};
}

int64_t ParamTable::count() const {
    int64_t n = 0;
    for (const Param& p : params_) n += p.count();
    return n;
}

std::vector<ParamTable::Stretch> ParamTable::added_to() const {
    std::vector<Stretch> stretches;
    int64_t begin = 0;
    const auto end_at = [&](int64_t end) {
        if (end > begin) stretches.push_back({begin, end - begin});
    };
    for (const Param& p : params_)
        if (p.of_product()) {
            end_at(p.offset);
            begin = p.offset + p.count();
        }
    end_at(size_);
    return stretches;
}

const Param* ParamTable::find(const std::string& name) const {
    const auto it =
        std::find_if(params_.begin(), params_.end(), [&](const Param& p) { return p.name == name; });
    return it == params_.end() ? nullptr : &*it;
}

namespace {

Tensor part_of(const Tensor& flat, const ParamRef& ref) {
    check(static_cast<bool>(ref), "view of a parameter that does not exist");
    const Tensor part = flat.range(ref.offset, ref.rows * ref.cols);
    return ref.rows == 1 ? part : part.shaped({ref.rows, ref.cols});
}

}  // namespace

Tensor FlatParams::view(const ParamRef& ref) const {
    return part_of(flat, ref);
}

Tensor FlatParams::matrix(const ParamRef& ref) const {
    return part_of(rounded ? rounded : flat, ref);
}

void FlatParams::round(Ops& ops) const {
    if (rounded) ops.copy(rounded, flat);
}

FlatParams plan_weights(Arena& arena, const ParamTable& table) {
    arena.group("weights");
    FlatParams weights{arena.reserve("weights", DType::f32, {table.size()})};
    if (arena.traits().activations != DType::f32)
        weights.rounded = arena.activation("rounded", {table.size()});
    return weights;
}

Tensor FlatParams::view(const Param& param) const {
    return view(ParamRef{param.offset, param.rows(), param.cols()});
}

namespace {

// One number of a random rule.
double drawn(const InitRule& rule, const Rng& rng, uint64_t index) {
    switch (rule.kind) {
        case InitRule::Kind::normal:
            return rule.from + rule.value * rng.normal(index);
        case InitRule::Kind::between:
            return rule.from + rule.value * rng.uniform(index);
        case InitRule::Kind::log_between:  // 1 - u is never 0
            return std::log(rule.from + rule.value * (1 - rng.uniform(index)));
        case InitRule::Kind::softplus_between: {
            const double y =
                rule.from * std::exp(rng.uniform(index) * std::log((rule.from + rule.value) / rule.from));
            return y + std::log(-std::expm1(-y));
        }
        default:
            return rule.from + rule.value * (2 * rng.uniform(index) - 1);
    }
}

}  // namespace

void initialise(const ParamTable& table, uint64_t seed, std::vector<float>& flat) {
    flat.assign(static_cast<size_t>(table.size()), 0.0f);
    for (const Param& param : table.params()) {
        float* out = flat.data() + param.offset;
        const int64_t n = param.count();
        if (param.init.kind == InitRule::Kind::constant) {
            std::fill(out, out + n, static_cast<float>(param.init.value));
            continue;
        }
        if (param.init.kind == InitRule::Kind::first_row) {
            std::fill(out, out + param.cols(), static_cast<float>(param.init.value));
            continue;
        }
        if (param.init.kind == InitRule::Kind::listed) {
            check(param.init.list.size() == static_cast<size_t>(n), "{} first values for {} elements of {}",
                  param.init.list.size(), n, param.name);
            std::transform(param.init.list.begin(), param.init.list.end(), out,
                           [](double v) { return static_cast<float>(v); });
            continue;
        }
        // The name is the key, so adding a tensor elsewhere in the model does not change this one's numbers.
        const Rng rng(seed, Purpose::init, static_cast<uint32_t>(xxh64(param.name)));
        for (int64_t i = 0; i < n; ++i)
            out[i] = static_cast<float>(drawn(param.init, rng, static_cast<uint64_t>(i)));
    }
}

}  // namespace longreach::model
