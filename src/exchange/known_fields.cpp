#include "exchange/known_fields.h"

#include <algorithm>

#include "config/acts.h"
#include "model/registry.h"

namespace longreach::exchange {

namespace {

constexpr std::string_view of_any_model[] = {".layers",  ".width",     ".vocab_size",  ".train_context",
                                             ".init",    ".head.tied", ".head.z_loss", ".pattern",
                                             ".layouts", ".last",      ".attention",   ".norm.out_gain"};
constexpr std::string_view of_any_layout[] = {".heads", ".kv_heads", ".head_dim", ".gate.zero_init",
                                              ".source"};

bool lists(std::span<const std::string_view> known, std::string_view path) {
    return std::any_of(known.begin(), known.end(), [&](std::string_view one) {
        return path == one || (path.starts_with(one) && path[one.size()] == '.');
    });
}

template <class S, class Skipped>
std::string first_unknown(const S& config, const Skipped& skipped) {
    const config::FieldInfo held = config::describe(config), defaults = config::describe(S{});
    std::string out;
    config::for_each_acting(held, held, skipped, [&](const config::FieldInfo& field, const std::string&) {
        if (out.empty() && field.value != config::held_field(defaults, field.path)->value) out = field.path;
    });
    return out;
}

}  // namespace

std::string unknown_field(const model::ModelConfig& model, std::span<const std::string_view> known) {
    return first_unknown(
        model, [&](const std::string& path) { return lists(known, path) || lists(of_any_model, path); });
}

std::string unknown_field(const model::AttentionConfig& layout, std::span<const std::string_view> known) {
    return first_unknown(layout, [&](const std::string& path) {
        return lists(known, path) || lists(of_any_layout, path) || !model::reads(layout, path);
    });
}

}  // namespace longreach::exchange
