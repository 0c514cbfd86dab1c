#include "exchange/own_form.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "config/field_info.h"
#include "exchange/known_fields.h"
#include "law/angle.h"
#include "model/attention_angle.h"
#include "model/attention_score.h"

namespace longreach::exchange {

namespace {

using model::AttentionConfig;
using model::ModelConfig;

constexpr std::string_view own_model_fields[] = {".embedding_norm",
                                                 ".positions",
                                                 ".norm",
                                                 ".mlp",
                                                 ".residual.x0",
                                                 ".residual.unet",
                                                 ".residual.values",
                                                 ".residual.value_embeddings",
                                                 ".residual.backout",
                                                 ".head.softcap"};
constexpr std::string_view own_layout_fields[] = {
    ".window",     ".chunk",       ".angle", ".angle_scaling", ".qk",   ".bias",     ".score",    ".params",
    ".score_base", ".score_count", ".sink",  ".output_norm",   ".gate", ".pre_norm", ".post_norm"};

bool solves(const law::Formula& f) {  // it has a function that is solved for, which torch lacks
    if (f == nullptr || f->kind != law::Node::Kind::call) return false;
    return law::is_solved(f->function) || std::any_of(f->arguments.begin(), f->arguments.end(), solves);
}

std::string beyond_score(const model::LayerScore& score) {
    if (!score.law.terms().empty() || !score.fading.empty()) return "a score that reads tokens (terms)";
    if (score.has_square) return "a score whose gain depends on n and t at once (si_interp)";
    for (const model::ScorePart* part : {&score.row, &score.gain, &score.bias}) {
        if (part->formula == nullptr) continue;
        if (law::uses(part->formula, law::Variable::T)) return "a score that depends on the length T";
        if (solves(part->formula)) return "a score with a function that is solved for (solve_c, maxterm)";
    }
    return {};
}

std::string beyond_attention(const ModelConfig& m, int64_t layer) {
    const AttentionConfig& a = m.layer_attention(layer);
    if (const std::string field = unknown_field(a, own_layout_fields); !field.empty()) return field;
    const law::Angle angle = model::trained_angle(m, layer);
    if (!angle.growth.empty()) return "an angle with growth";
    for (const law::Formula& f : angle.near)
        if (solves(f)) return "an angle with a function that is solved for";
    return beyond_score(model::layer_score(m, layer));
}

json::Value text_of(const law::Formula& formula, bool present, const std::vector<std::string>& names) {
    return present && formula != nullptr ? json::Value(law::write(formula, names)) : json::Value();
}

void set_score(json::Value& settings, const model::LayerScore& score, int64_t heads,
               const model::ParamTable& table) {
    std::vector<std::string> names;
    json::Value tensors = json::Value::object(), sizes = json::Value::object(),
                by_head = json::Value::object();
    for (size_t i = 0; i < score.law.parameters().size(); ++i) {
        const law::Parameter& parameter = score.law.parameters()[i];
        names.push_back(parameter.name);
        if (i >= score.tensors.size() || score.tensors[i].empty()) continue;
        const model::Param* param = table.find(score.tensors[i]);
        if (param == nullptr) continue;
        tensors.set(parameter.name, param->name);
        sizes.set(parameter.name, parameter.size);
        by_head.set(parameter.name,
                    parameter.learn == law::Sharing::head && param->count() == heads * parameter.size);
    }
    settings.set("base", score.base)
        .set("softcap", score.law.law().softcap)
        .set("row", text_of(score.row.formula, score.has_row, names))
        .set("gain", text_of(score.gain.formula, score.has_distance, names))
        .set("bias", text_of(score.bias.formula, score.has_distance, names))
        .set("parameters", tensors)
        .set("sizes", sizes)
        .set("by_head", by_head);
}

void set_angles(json::Value& settings, const law::Angle& angle) {
    json::Value theta = json::Value::array(), angles = json::Value::array();
    if (const auto frequencies = law::frequencies(angle.near)) {
        for (const double f : *frequencies) theta.push(f);
    } else {
        for (const law::Formula& f : angle.near) angles.push(law::write(f, {}));
    }
    settings.set("theta", theta).set("angles", angles);
}

json::Value gate_of(const AttentionConfig& a, const json::Value& kind, int64_t width) {
    const bool sparse = a.gate.kind == model::GateKind::sparse;
    return json::Value::object({{"kind", sparse ? json::Value("headwise") : kind},
                                {"channels", sparse ? model::sparse_gate_channels : width},
                                {"factor", a.gate.doubled ? 2 : 1}});
}

json::Value layer_settings(const ModelConfig& m, int64_t layer, const model::ParamTable& table) {
    const AttentionConfig& a = m.layer_attention(layer);
    using model::NormPlacement;
    const NormPlacement placement = m.norm.placement;
    const config::FieldInfo fields = config::describe(a);
    const auto value = [&](const char* path) { return config::held_field(fields, path)->value; };
    json::Value s = json::Value::object();
    s.set("heads", a.heads)
        .set("kv_heads", a.kv())
        .set("head_dim", a.head_dim)
        .set("window", a.window)
        .set("chunk", a.chunk)
        .set("qk", value("qk.kind"))
        .set("qk_eps", a.qk.eps)
        .set("count_visible", a.score_count == model::ScoreCount::visible)
        .set("sink", a.sink == model::SinkKind::none ? "none" : "some")
        .set("output_norm", value("output_norm.kind"))
        .set("output_factor", json::Value())
        .set("gate", gate_of(a, value("gate.kind"), m.width))
        .set("pre_norm",
             a.pre_norm && placement != NormPlacement::hybrid && placement != NormPlacement::after)
        .set("post_norm",
             a.post_norm || placement == NormPlacement::peri || placement == NormPlacement::after)
        .set("value_table", m.value_embedding_of(layer));
    if (a.output_norm.kind == model::OutputNorm::position)
        s.set("output_factor", law::write(model::output_factor(m, layer).near[0], {}));
    set_angles(s, model::trained_angle(m, layer));
    set_score(s, model::layer_score(m, layer), a.heads, table);
    return s;
}

}  // namespace

std::string beyond_own_form(const ModelConfig& m) {
    if (const std::string field = unknown_field(m, own_model_fields); !field.empty()) return "model." + field;
    for (int64_t l = 0; l < m.layers; ++l)
        if (const std::string beyond = beyond_attention(m, l); !beyond.empty())
            return m.layout_path(l) + ": " + beyond;
    return {};
}

json::Value own_config(const ModelConfig& m, const model::ParamTable& table) {
    json::Value tensors = json::Value::object(), layers = json::Value::array();
    for (const model::Param& param : table.params()) {
        json::Value shape = json::Value::array();
        for (const int64_t dim : param.shape) shape.push(dim);
        tensors.set(param.name, shape);
    }
    for (int64_t l = 0; l < m.layers; ++l) layers.push(layer_settings(m, l, table));
    const config::FieldInfo fields = config::describe(m);
    const auto value = [&](const char* path) { return config::held_field(fields, path)->value; };
    json::Value own = json::Value::object();
    own.set("norm", value("norm.kind"))
        .set("eps", m.norm.eps)
        .set("placement", value("norm.placement"))
        .set("mlp", value("mlp.kind"))
        .set("embedding_norm", m.embedding_norm)
        .set("positions", m.positions)
        .set("unet", m.residual.unet)
        .set("backout", m.residual.backout)
        .set("values_first", m.residual.values == model::ValueMix::first)
        .set("head_softcap", config::to_json(*config::held_field(fields, "head.softcap")))
        .set("tensors", tensors)
        .set("layers", layers);
    const AttentionConfig& first = m.layer_attention(0);
    return json::Value::object(
        {{"architectures", json::Value::array({"LongreachForCausalLM"})},
         {"model_type", "longreach"},
         {"auto_map",
          json::Value::object({{"AutoConfig", "modeling_longreach.LongreachConfig"},
                               {"AutoModelForCausalLM", "modeling_longreach.LongreachForCausalLM"}})},
         {"vocab_size", m.vocab_size},
         {"hidden_size", m.width},
         {"num_hidden_layers", m.layers},
         {"num_attention_heads", first.heads},
         {"num_key_value_heads", first.kv()},
         {"head_dim", first.head_dim},
         {"max_position_embeddings", m.train_context},
         {"tie_word_embeddings", false},  // a tied head is one tensor
         {"longreach", own},
         {"longreach_model", config::to_json(fields)}});
}

}  // namespace longreach::exchange
