#include "mixers/qkv_heads.h"

#include "model/recent_rows.h"

namespace longreach::model {

void QkvHeads::add_heads(ParamTable& table, bool grows) {
    queries_ = Heads(table, name_, config_, Heads::Part::queries, grows);
    keys_ = Heads(table, name_, config_, Heads::Part::keys, grows);
}

void QkvHeads::plan_heads(Memory& memory, Arena& arena, const std::string& name, int64_t tokens) const {
    memory.queries = queries_.plan(arena, name + "queries", tokens);
    memory.keys = keys_.plan(arena, name + "keys", tokens);
}

void QkvHeads::plan_kept(QkvSource::Memory& memory, KeptTexts& kept, const std::string& name,
                         bool far) const {
    Memory& m = static_cast<Memory&>(memory);
    m.kept_keys = kept.positions(name + "keys", value_width());
    m.kept_values = kept.positions(name + "values", value_width());
    if (far) m.kept_far_keys = kept.positions(name + "far_keys", value_width());
}

void QkvHeads::turn(StepContext& run, const QkvSource::Memory& memory, const Tensor& q, const Tensor& k,
                    const LayerTables& tables, bool far) const {
    const Memory& m = static_cast<const Memory&>(memory);
    const int64_t position = run.position();
    queries_.forward(run, m.queries, q, (far ? tables.far_queries : tables.queries).from(position),
                     tables.ones);
    keys_.forward(run, m.keys, k, (far ? tables.far_keys : tables.keys).from(position), tables.ones);
}

void QkvHeads::turn_back(StepContext& run, const Tensor& dqkv, const Tensor& qkv, const Memory& memory,
                         const LayerTables& tables) const {
    const Qkv d = parts_of(dqkv), turned = parts_of(qkv);
    queries_.backward(run, d.q, turned.q, memory.queries, tables.queries, tables.ones);
    keys_.backward(run, d.k, turned.k, memory.keys, tables.keys, tables.ones);
}

void QkvHeads::keep(StepContext& run, const QkvSource::Memory& memory, const Tensor& k, const Tensor& v,
                    const Tensor& far_keys) const {
    const Memory& m = static_cast<const Memory&>(memory);
    keep_rows(run, m.kept_keys, k);
    keep_rows(run, m.kept_values, v);
    if (far_keys) keep_rows(run, m.kept_far_keys, far_keys);
}

void QkvHeads::decode(StepContext& run, const QkvSource::Memory& memory, const Tensor& o, const Tensor& q,
                      AttentionSpec scores, int64_t first) const {
    const Memory& m = static_cast<const Memory&>(memory);
    const auto kept = [&](const Tensor& rows) { return rows.first_rows(q.rows() * scores.length); };
    if (scores.far_keys) scores.far_keys = kept(m.kept_far_keys);
    run.ops.attention_decode(o, q, kept(m.kept_keys), kept(m.kept_values), scores, first, run.position());
}

}  // namespace longreach::model
