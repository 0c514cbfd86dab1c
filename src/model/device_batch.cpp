#include "model/device_batch.h"

namespace longreach::model {

void DeviceBatch::plan(Arena& arena, int64_t tokens, const Parts& parts) {
    parts_ = parts;
    tokens_ = arena.reserve("tokens", DType::i32, {tokens});
    if (parts.targets) targets_ = arena.reserve("targets", DType::i32, {tokens});
    if (parts.documents) doc_start_ = arena.reserve("doc_start", DType::i32, {tokens});
    if (parts.loss_weights) loss_weights_ = arena.reserve("loss_weights", DType::f32, {tokens});
}

Batch DeviceBatch::upload(Ops& ops, int64_t length, std::span<const int32_t> tokens,
                          std::span<const int32_t> targets, std::span<const int32_t> doc_start,
                          std::span<const float> loss_weights) const {
    const auto upload_part = [&](const Tensor& memory, const auto& host) {
        if (host.empty()) return Tensor();
        check(host.size() == tokens.size(), "{} entries for {} tokens", host.size(), tokens.size());
        const Tensor part = memory.first(static_cast<int64_t>(host.size()));
        ops.upload(part, host.data());
        return part;
    };
    return {static_cast<int64_t>(tokens.size()) / length,
            length,
            upload_part(tokens_, tokens),
            upload_part(targets_, targets),
            upload_part(doc_start_, doc_start),
            upload_part(loss_weights_, loss_weights)};
}

}  // namespace longreach::model
