// Rotary positions of foreign models as angles of this one: each kind of scaling is a formula of `attention.angle`.
#include <cmath>

#include <fmt/format.h>

#include "exchange/family.h"

namespace longreach::exchange {

namespace {

json::Value parameter(json::Value init) {
    return json::Value::object({{"init", std::move(init)}});
}

struct Scaling {
    json::Value& attention;
    const Settings& settings;
    const Rope& rope;
    double base;

    void write(const std::string& angle, json::Value params) const {
        params.set("base", parameter(base));
        attention.set("angle", angle).set("params", params);
    }

    double factor(const char* key = "factor") const {
        const double value = settings.number(key, 0);
        if (!(value > 0)) settings.refuse(key, "must be above 0");
        return value;
    }

    double original() const {
        return static_cast<double>(settings.integer("original_max_position_embeddings", rope.context, 1));
    }

    void linear() const {
        write("p * base^(-2*m/d) / factor", json::Value::object({{"factor", parameter(factor())}}));
    }

    // Rotations over the original context above `high` stay, those below `low` are divided by the factor.
    void llama3() const {
        const double low = factor("low_freq_factor"), high = factor("high_freq_factor");
        if (!(low < high)) settings.refuse("low_freq_factor", "must be below high_freq_factor");
        write(
            "p * base^(-2*m/d) * (1/factor + (1 - 1/factor) * "
            "clamp((original*base^(-2*m/d)/(2*pi) - low)/(high - low), 0, 1))",
            json::Value::object({{"factor", parameter(factor())},
                                 {"high", parameter(high)},
                                 {"low", parameter(low)},
                                 {"original", parameter(original())}}));
    }

    // The ramp between the pairs that turn beta_fast and beta_slow times over the original context. The length of
    // both queries and keys is multiplied by attention_factor, which is the base of the scores here.
    void yarn() const {
        settings.only("mscale", nullptr);
        settings.only("mscale_all_dim", nullptr);
        const double k = settings.number("factor", static_cast<double>(rope.context) / original());
        if (!(k > 0)) settings.refuse("factor", "must be above 0");
        const double length = settings.number("attention_factor", k <= 1 ? 1 : 0.1 * std::log(k) + 1);
        const double d = static_cast<double>(rope.head_dim), fast = settings.number("beta_fast", 32),
                     slow = settings.number("beta_slow", 1), pi = std::acos(-1.0);
        const auto pair = [&](double turns) {
            return d * std::log(original() / (turns * 2 * pi)) / (2 * std::log(base));
        };
        double low = pair(fast), high = pair(slow);
        if (settings.flag("truncate", true)) {
            low = std::floor(low);
            high = std::ceil(high);
        }
        low = std::max(low, 0.0);
        high = std::min(high, d - 1);
        if (low == high) high += 0.001;
        if (!(base > 1) || !std::isfinite(low) || !std::isfinite(high) || !(length > 0))
            settings.refuse("rope_type", "the numbers of yarn give no angles");
        write("p * base^(-2*m/d) * (1 - (1 - 1/factor) * clamp((m - low)/(high - low), 0, 1))",
              json::Value::object(
                  {{"factor", parameter(k)}, {"high", parameter(high)}, {"low", parameter(low)}}));
        attention.set("scale", json::Value::object({{"base", length * length / std::sqrt(d)}}));
    }
};

}  // namespace

void set_rope(json::Value& attention, const Settings& settings, const Rope& rope) {
    const Settings modern = settings.section("rope_parameters"), old = settings.section("rope_scaling");
    const Settings grouped = rope.group.empty() ? modern : modern.section(rope.group);
    const Settings& scaling = !grouped.empty() ? grouped : old;
    const double base = scaling.number("rope_theta", settings.number("rope_theta", rope.base));
    if (!(base > 0)) settings.refuse("rope_theta", "must be above 0");
    settings.only("partial_rotary_factor", 1.0);
    scaling.only("partial_rotary_factor", 1.0);
    const std::string type = scaling.text("rope_type", scaling.text("type", "default"));
    const Scaling scaled{attention, scaling, rope, base};
    if (type == "default") {
        attention.set("position", json::Value::object({{"kind", "rope"}, {"base", base}}));
    } else if (type == "linear") {
        scaled.linear();
    } else if (type == "llama3") {
        scaled.llama3();
    } else if (type == "yarn") {
        scaled.yarn();
    } else {
        scaling.refuse("rope_type",
                       fmt::format("{} is not supported; default, linear, llama3 and yarn are", type));
    }
}

}  // namespace longreach::exchange
