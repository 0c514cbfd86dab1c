// Rotary positions of foreign models as an angle of this program.
#include <fmt/format.h>

#include "exchange/family.h"

namespace longreach::exchange {

namespace {

// The kinds of scaling, as angle_scaling.
struct Scaling {
    const Settings& settings;
    const Rope& rope;

    double positive(const char* key, double fallback = 0) const {
        const double value = settings.number(key, fallback);
        if (!(value > 0)) settings.refuse(key, "must be above 0");
        return value;
    }

    int64_t original() const { return settings.integer("original_max_position_embeddings", rope.context, 1); }

    json::Value linear() const {
        return json::Value::object({{"kind", "pi"}, {"factor", positive("factor")}});
    }

    json::Value llama3() const {
        const double low = positive("low_freq_factor"), high = positive("high_freq_factor");
        if (!(low < high)) settings.refuse("low_freq_factor", "must be below high_freq_factor");
        return json::Value::object({{"kind", "llama3"},
                                    {"factor", positive("factor")},
                                    {"original_context", original()},
                                    {"fast", high},
                                    {"slow", low}});
    }

    json::Value yarn() const {
        settings.only("mscale", nullptr);
        settings.only("mscale_all_dim", nullptr);
        const double fallback = static_cast<double>(rope.context) / static_cast<double>(original());
        const double fast = positive("beta_fast", 32), slow = positive("beta_slow", 1);
        if (!(slow < fast)) settings.refuse("beta_slow", "must be below beta_fast");
        json::Value scaling = json::Value::object({{"kind", "yarn"},
                                                   {"factor", positive("factor", fallback)},
                                                   {"original_context", original()},
                                                   {"fast", fast},
                                                   {"slow", slow},
                                                   {"truncate", settings.flag("truncate", true)}});
        if (settings.has("attention_factor")) scaling.set("attention_factor", positive("attention_factor"));
        return scaling;
    }
};

}  // namespace

void set_rotary(json::Value& attention, double base) {
    attention.set("angle", "rope")
        .set("params", json::Value::object({{"base", json::Value::object({{"init", base}})}}));
}

void set_rope(json::Value& attention, const Settings& settings, const Rope& rope) {
    const Settings modern = settings.section("rope_parameters"), old = settings.section("rope_scaling");
    const Settings grouped = rope.group.empty() ? modern : modern.section(rope.group);
    const Settings& scaling = !grouped.empty() ? grouped : old;
    const double base = scaling.number("rope_theta", settings.number("rope_theta", rope.base));
    if (!(base > 0)) settings.refuse("rope_theta", "must be above 0");
    settings.only("partial_rotary_factor", 1.0);
    scaling.only("partial_rotary_factor", 1.0);
    const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
    set_rotary(attention, base);
    const Scaling scaled{scaling, rope};
    if (type == "linear") {
        attention.set("angle_scaling", scaled.linear());
    } else if (type == "llama3") {
        attention.set("angle_scaling", scaled.llama3());
    } else if (type == "yarn") {
        attention.set("angle_scaling", scaled.yarn());
    } else if (type != "default") {
        scaling.refuse("rope_type",
                       fmt::format("{} is not supported; default, linear, llama3 and yarn are", type));
    }
}

}  // namespace longreach::exchange
