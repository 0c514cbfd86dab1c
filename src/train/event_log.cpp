#include "train/event_log.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "base/error.h"
#include "config/diff.h"
#include "config/loader.h"
#include "model/param_name.h"
#include "train/stepper.h"

namespace longreach::train {

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void flatten(const std::string& path, const json::Value& value, std::vector<io::HyperParameter>& out) {
    if (const json::Object* members = value.to_object()) {
        for (const json::Member& m : *members) flatten(config::field_path(path, m.key), m.value, out);
    } else if (const std::optional<bool> flag = value.to_bool()) {
        out.push_back({path, *flag});
    } else if (const std::optional<double> number = value.to_number()) {
        out.push_back({path, *number});
    } else if (const std::string* text = value.to_string()) {
        out.push_back({path, *text});
    } else {
        out.push_back({path, json::write(value, json::Style::compact)});
    }
}

std::string as_code(const std::string& text) {  // in Markdown
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        out += "    " + text.substr(at, end - at) + '\n';
        at = end + 1;
    }
    return out;
}

}  // namespace

std::vector<io::HyperParameter> hyperparameters_of(const Experiment& experiment) {
    std::vector<io::HyperParameter> out;
    for (const config::Difference& d :
         config::diff(config::describe(Experiment()), config::describe(experiment)))
        if (d.right) flatten(d.path, *d.right, out);
    return out;
}

Histogram histogram_of(const std::vector<double>& values) {
    const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
    const double low = *lowest, width = *highest - low;
    if (width == 0) return {{low - 0.5, low + 0.5}, {static_cast<double>(values.size())}};
    constexpr size_t buckets = 30;
    Histogram h{std::vector<double>(buckets + 1), std::vector<double>(buckets)};
    for (size_t i = 0; i <= buckets; ++i)
        h.edges[i] = low + width * (static_cast<double>(i) / static_cast<double>(buckets));
    h.edges.back() = *highest;
    for (const double v : values) {
        const auto i = static_cast<size_t>((v - low) / width * static_cast<double>(buckets));
        h.counts[std::min(i, buckets - 1)] += 1;
    }
    return h;
}

template <class Action>
void EventLog::attempt(Action action) {
    if (!file_) return;
    try {
        action(*file_);
        file_->flush();
    } catch (const Error& e) {
        file_.reset();
        console_->warn(fmt::format("no more events for TensorBoard: {}", e.what()));
    }
}

EventLog::EventLog(const std::string& directory, const Experiment& experiment, int64_t step, Console& console,
                   io::Disk& disk)
    : console_(&console) {
    const double time = now();
    try {
        const io::PathKind kind = io::kind_of(directory, io::Links::refuse);
        require(kind == io::PathKind::missing || kind == io::PathKind::directory, ExitCode::disk,
                "{} is not a directory", directory);
        io::make_directories(directory, disk);
        file_.emplace(directory, time, disk);
    } catch (const Error& e) {
        console.warn(fmt::format("no events for TensorBoard: {}", e.what()));
    }
    attempt([&](io::EventFile& file) {
        // Points of step `step` remain valid: the checkpoint was made after them. A new run has no
        // such points, but it may follow one that was lost before its first checkpoint.
        file.session_start(step == 0 ? 0 : step + 1, time);
        std::vector<std::string> val_tags;
        for (const int64_t length : experiment.eval.lengths)
            val_tags.push_back(fmt::format("val/{}", length));
        file.hyperparameters(experiment.run.name, hyperparameters_of(experiment), val_tags, time);
        std::vector<io::EventChart> charts{{"loss by context length", {"val/[0-9]+$"}}};
        for (const auto& [name, set] : experiment.data.val_sets)
            charts.push_back({"loss by context length on " + name, {"val/" + name + "/[0-9]+$"}});
        file.layout("validation", charts, time);
        file.text("config", step, as_code(config::write_resolved(experiment)), time);
    });
}

void EventLog::train_step(int64_t step, const StepOutcome& outcome, double tokens_per_second) {
    attempt([&](io::EventFile& file) {
        const double time = now();
        file.scalar("train/loss", step, outcome.loss, time);
        if (outcome.index_loss) file.scalar("train/index_loss", step, *outcome.index_loss, time);
        if (outcome.finite) file.scalar("train/grad_norm", step, outcome.gradient_norm, time);
        file.scalar("train/lr", step, outcome.lr, time);
        file.scalar("timing/tokens_per_second", step, tokens_per_second, time);
    });
}

void EventLog::validation(int64_t step, const std::string& set,
                          const std::vector<eval::LengthResult>& results) {
    attempt([&](io::EventFile& file) {
        const double time = now();
        for (const eval::LengthResult& r : results) {
            const std::string name = fmt::format("{}{}{}", set, set.empty() ? "" : "/", r.length);
            file.scalar("val/" + name, step, r.loss.mean(), time);
            file.scalar("val_top1/" + name, step, r.top1(), time);
        }
    });
}

void EventLog::weights(int64_t step, Ops& ops, const model::ParamTable& table,
                       const model::FlatParams& weights) {
    if (!file_) return;
    std::map<std::string, std::vector<double>> by_name;
    std::vector<float> host;
    for (const model::Param& p : table.params()) {
        if (p.group != model::ParamGroup::scalar) continue;
        host.resize(static_cast<size_t>(p.count()));
        ops.download(host.data(), weights.view(p));
        for (const float value : host)
            if (std::isfinite(value)) by_name[std::string(model::ParamName(p.name).rest)].push_back(value);
    }
    attempt([&](io::EventFile& file) {
        const double time = now();
        for (const auto& [name, values] : by_name) {
            const Histogram h = histogram_of(values);
            file.histogram("weights/" + name, step, h.edges, h.counts, time);
        }
    });
}

void EventLog::scores(int64_t step, const std::vector<std::vector<double>>& by_layer) {
    attempt([&](io::EventFile& file) {
        const double time = now();
        for (size_t l = 0; l < by_layer.size(); ++l) {
            std::vector<double> finite;
            for (const double z : by_layer[l])
                if (std::isfinite(z)) finite.push_back(z);
            if (finite.empty()) continue;
            const Histogram h = histogram_of(finite);
            file.histogram(fmt::format("scores/layer {}", l), step, h.edges, h.counts, time);
        }
    });
}

void EventLog::end(io::SessionEnd status) {
    attempt([&](io::EventFile& file) { file.session_end(status, now()); });
}

}  // namespace longreach::train
