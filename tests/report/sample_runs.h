// Run directories in the formats of data/formats, with made-up numbers: everything that a report can show.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/file.h"
#include "io/temp_dir.h"

namespace longreach::test {

struct SampleVariant {
    std::string name;
    double growth;  // of the loss per doubling beyond the training length
    std::vector<std::string> evaluations;
};

struct SampleSweep {
    std::string name = "sample sweep";
    std::vector<SampleVariant> variants{
        {"rope", 0.45, {"ntk", "yarn"}}, {"logn", 0.2, {"plain"}}, {"si-p-rope", 0.03, {}}};
    int seeds = 3;
    int64_t steps = 400;
    std::vector<int64_t> lengths{256, 512, 1024, 2048, 4096, 8192};
    int layers = 4;
};

class SampleWriter {
  public:
    explicit SampleWriter(SampleSweep sweep) : sweep_(std::move(sweep)) {}

    // A sweep directory with a run for each variant and seed; `plain` everywhere if any variant has it.
    void write_sweep(const std::string& path) const {
        io::make_directories(path);
        json::Value runs = json::Value::array();
        for (size_t v = 0; v < sweep_.variants.size(); ++v)
            for (int seed = 1; seed <= sweep_.seeds; ++seed) {
                const std::string name = fmt::format("{}.seed{}", sweep_.variants[v].name, seed);
                json::Value labels = json::Value::array({"plain"});
                for (const std::string& label : sweep_.variants[v].evaluations)
                    if (label != "plain") labels.push(label);
                runs.push(json::Value::object({{"variant", sweep_.variants[v].name},
                                               {"seed", seed},
                                               {"directory", name},
                                               {"evaluations", labels}}));
                write_run(io::join_path(path, name), v, seed);
            }
        put(io::join_path(path, "sweep.json"),
            json::write(json::Value::object(
                            {{"name", sweep_.name}, {"runs", runs}, {"baseline", sweep_.variants[0].name}}),
                        json::Style::pretty));
    }

    // An evaluation of the run that scored other tokens than all others.
    void write_apart(const std::string& run, const std::string& label) const {
        const std::string at = io::join_path(run, "eval/" + label);
        io::make_directories(at);
        std::string rows;
        for (int64_t length : sweep_.lengths)
            rows +=
                fmt::format("{},0,{},0.5,0.02,16384,3,,0.9,,{}\n", sweep_.steps, length, "00000000000000bb");
        put(io::join_path(at, "val.csv"), val_head() + rows);
    }

    void write_run(const std::string& path, size_t v, int seed) const {
        const SampleVariant& variant = sweep_.variants[v];
        io::make_directories(path);
        put(io::join_path(path, "config.json"), json::write(config(path, v, seed), json::Style::pretty));
        put(io::join_path(path, "log.txt"), "10:00:00 run: here\n10:01:00 warning: step 101 was skipped\n");
        put(io::join_path(path, "build.json"),
            R"({"version": "0.1.0", "commit": "0123456789ab", "compiler": "GNU 12.2.0", "system": "Linux x86_64",
                "cpu": "A processor", "data": {"training": "00000000000000aa"}})");
        put(io::join_path(path, "origins.json"),
            R"({"model.width": "base.json:1:3", "eval.every": "sweep.json:2:5", "run.seed": "derived",
                "model.layers": "base.json:1:9", "optimizer.clip_norm": "over.json:4:1", "eval.tokens": "command line"})");
        std::string metrics, timing, val = val_head(), positions = "step,length,by,bucket,loss,scored\n";
        for (int64_t step = 5; step <= sweep_.steps; step += 5) {
            const double loss =
                0.9 + 1.8 * std::exp(-static_cast<double>(step) / 60) + noise(v, seed, step, 0.03);
            metrics += fmt::format(
                "{{\"step\":{},\"tokens\":{},\"context\":{},\"loss\":{},\"grad_norm\":{},\"lr\":{},"
                "\"skipped\":{},\"layer_grad_norms\":[{}]}}\n",
                step, step * 8192, step <= sweep_.steps / 2 ? 128 : 256, loss,
                0.2 + std::exp(-static_cast<double>(step) / 40),
                std::min(1.0, static_cast<double>(step) / 50), step > 100 ? 1 : 0,
                layer_norms(v, seed, step));
            timing += fmt::format("{{\"step\":{},\"seconds\":{},\"tokens_per_second\":{}}}\n", step,
                                  0.3 * step, 28000 + step);
        }
        for (int64_t step : {sweep_.steps / 4, sweep_.steps / 2, sweep_.steps})
            val += val_rows(v, seed, step, "");
        for (int64_t length : sweep_.lengths)
            for (const char* by : {"sequence", "document"})
                for (int64_t bucket = 1; bucket <= length; bucket *= 2)
                    positions += fmt::format("{},{},{},{},{},{}\n", sweep_.steps, length, by, bucket,
                                             0.8 + 2 / std::sqrt(static_cast<double>(bucket)) +
                                                 growth(v, bucket) + noise(v, seed, bucket, 0.02),
                                             bucket * 100);
        // The run is still writing: the last lines are cut off.
        put(io::join_path(path, "metrics.jsonl"), metrics + "{\"step\":405,\"tok");
        put(io::join_path(path, "timing.jsonl"), timing + "{\"st");
        put(io::join_path(path, "val.csv"), val + "450,1,25");
        put(io::join_path(path, "positions.csv"), positions + "450,");
        put(io::join_path(path, "probe.csv"), roles_by_step());
        std::vector<std::string> labels = variant.evaluations;
        labels.push_back("plain");
        for (const std::string& label : labels) {
            const std::string at = io::join_path(io::join_path(path, "eval"), label);
            io::make_directories(at);
            put(io::join_path(at, "val.csv"), val_head() + val_rows(v, seed, sweep_.steps, label));
            if (label != "suffix")
                put(io::join_path(at, "tasks.csv"), tasks(v, seed, label));
            else
                put(io::join_path(at, "request.json"),
                    R"({ "align": "suffix", "set": ["eval.align=\"suffix\""] })");
            if (label != "plain") continue;
            put(io::join_path(at, "probe.csv"), probe(v, seed));
            put(io::join_path(at, "key_tokens.csv"), key_tokens(v, seed));
        }
    }

  private:
    // One that loads: variants differ in the law of their scores.
    json::Value config(const std::string& path, size_t v, int seed) const {
        constexpr const char* laws[] = {"z", "logn", "scale_invariant", "alibi"};
        const auto stage = [&](int64_t context) {
            return json::Value::object({{"steps", sweep_.steps / 2}, {"context", context}});
        };
        return json::Value::object(
            {{"run", json::Value::object({{"name", io::base_name(path)}, {"seed", seed}})},
             {"model", json::Value::object({{"attention", json::Value::object({{"score", laws[v % 4]}})}})},
             {"data", json::Value::object({{"train", json::Value::array({"train.bin"})},
                                           {"val", json::Value::array({"val.bin"})}})},
             {"stages", json::Value::array({stage(128), stage(256)})}});
    }
    static std::string val_head() {
        return "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,top1_error,"
               "fingerprint\n";
    }
    double noise(size_t v, int seed, int64_t at, double size) const {
        uint64_t h = (static_cast<uint64_t>(at) * 1000003 + v * 7919 + static_cast<uint64_t>(seed)) *
                     0x9E3779B97F4A7C15ull;
        h ^= h >> 29;
        h *= 0xBF58476D1CE4E5B9ull;
        return size * (2 * static_cast<double>(h >> 11) / 9007199254740992.0 - 1);
    }
    std::string layer_norms(size_t v, int seed, int64_t step) const {
        std::string out;
        for (int layer = 0; layer < sweep_.layers; ++layer)
            out += fmt::format("{}{}", layer == 0 ? "" : ",",
                               0.1 / (layer + 1 + static_cast<double>(v)) * (1 + noise(v, seed, step, 0.1)));
        return out;
    }
    double growth(size_t v, int64_t length) const {
        return sweep_.variants[v].growth * std::max(0.0, std::log2(static_cast<double>(length) / 256));
    }
    std::string val_rows(size_t v, int seed, int64_t step, const std::string& label) const {
        const double kept = label == "ntk" ? 0.5 : label == "yarn" ? 0.2 : label == "suffix" ? 0.7 : 1;
        std::string out;
        for (int64_t length : sweep_.lengths) {
            const double loss = 0.85 + 100.0 / static_cast<double>(step) * 0.3 + kept * growth(v, length) +
                                noise(v, seed, length, 0.02);
            // While training fewer tokens are scored than at the end.
            const bool last = step == sweep_.steps;
            const char* tokens = label == "suffix" ? "00000000000000dd"
                                 : last            ? "00000000000000aa"
                                                   : "00000000000000cc";
            out += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", step, step * 8192, length, loss, 0.01,
                               last ? 65536 : 32768, last ? 320 : 160, loss * 1.44, std::exp(-loss) + 0.2,
                               0.004, tokens);
        }
        return out;
    }
    // The tokens of one judge for all.
    std::string key_tokens(size_t v, int seed) const {
        std::string out =
            "step,length,part,loss,standard_error,scored,from,to,judge,fingerprint,judge_name,parts\n";
        for (int64_t length : sweep_.lengths)
            for (const char* part : {"key", "other"})
                out += fmt::format(
                    "{},{},{},{},0.02,{},256,8192,file,00000000000000aa,referee,0000000000000011\n",
                    sweep_.steps, length, part,
                    (part[0] == 'k' ? 600.0 / static_cast<double>(length) : 0.8) + growth(v, length) +
                        noise(v, seed, length, 0.02),
                    part[0] == 'k' ? 2048 : 63488);
        return out;
    }
    std::string tasks(size_t v, int seed, const std::string& label) const {
        std::string out = "step,task,length,depth,samples,accuracy,accuracy_error,margin,margin_error,loss\n";
        const double kept = label == "ntk" ? 0.5 : label == "yarn" ? 0.2 : 1;
        for (int64_t length : sweep_.lengths) {
            for (int depth : {0, 25, 50, 75, 100}) {
                const double lost = kept * growth(v, length) * (1.2 - depth / 100.0);
                const double accuracy =
                    std::clamp(std::exp(-lost) + noise(v, seed, length + depth, 0.05), 0.0, 1.0);
                out += fmt::format("{},needle,{},{},50,{},0.02,{},0.1,{}\n", sweep_.steps, length, depth,
                                   accuracy, 4 - 6 * lost, 0.2 + lost);
            }
            out += fmt::format("{},copy,{},,80,{},0.02,,,{}\n", sweep_.steps, length,
                               std::exp(-0.3 * kept * growth(v, length)), 0.1);
        }
        return out;
    }
    // A head becomes an induction head in mid-training, a retrieval head at the end.
    std::string roles_by_step() const {
        std::string out = "step,length,layer,head,bin,statistic,value,count\n";
        for (const int64_t step : {sweep_.steps / 4, sweep_.steps / 2, sweep_.steps})
            for (const char* name : {"previous_score", "induction_score", "retrieval_score"}) {
                const int64_t first = name[0] == 'p' ? 0 : name[0] == 'i' ? sweep_.steps / 2 : sweep_.steps;
                for (int head = 0; head < 2; ++head)
                    out += fmt::format("{},0,1,{},0,{},{},100\n", step, head, name,
                                       head == 0 && step >= first ? 0.9 : 0.1);
            }
        return out;
    }
    std::string probe(size_t v, int seed) const {
        std::string out = "step,length,layer,head,bin,statistic,value,count\n";
        const auto row = [&](int64_t length, int layer, int head, int64_t bin, const std::string& name,
                             double value) {
            out += fmt::format("{},{},{},{},{},{},{},100\n", sweep_.steps, length, layer, head, bin, name,
                               value);
        };
        const std::pair<const char*, double> quantiles[] = {
            {"01", -2.33}, {"05", -1.64}, {"25", -0.67}, {"50", 0}, {"75", 0.67}, {"95", 1.64}, {"99", 2.33}};
        for (int64_t length : {sweep_.lengths.front(), sweep_.lengths.back()})
            for (int layer = 0; layer < sweep_.layers; ++layer) {
                for (int head = 0; head < 2; ++head)
                    for (int64_t bin = 1; bin <= length; bin *= 2) {
                        const double n = std::log2(static_cast<double>(bin)) + 1;
                        const double jitter = noise(v, seed, bin * 10 + layer, 0.1);
                        row(length, layer, head, bin, "entropy",
                            n * (0.3 + 0.1 * static_cast<double>(v)) + jitter);
                        row(length, layer, head, bin, "sink_mass", 1 / (n + layer) + 0.1 * jitter);
                        row(length, layer, head, bin, "a new <statistic>", n);
                        row(length, layer, head, bin, "key_norm_mean",
                            5 + layer + (bin == 1 ? 3 : 0) + jitter);
                        row(length, layer, head, bin, "decade_mass_0", 1 / (n + 1));
                        row(length, layer, head, bin, "induction_mass",
                            layer == 2 && head == 1 ? 0.9 + jitter : 0.05 + 0.2 * std::abs(jitter));
                    }
                for (int head = 0; head < 2; ++head)
                    for (int64_t nearest = 0; nearest < length; nearest = nearest == 0 ? 1 : 10 * nearest) {
                        const double t = static_cast<double>(nearest);
                        const double decay = static_cast<double>(v) + 1 + 0.2 * layer;
                        row(length, layer, head, 0, fmt::format("decade_mass_{}", nearest),
                            1 / (1 + decay * std::log1p(t)) / 3);
                        row(length, layer, head, 0, fmt::format("cosine_mean_{}", nearest),
                            std::cos(0.3 * decay * std::log1p(t)) + noise(v, seed, nearest + layer, 0.05));
                        row(length, layer, head, 0, fmt::format("cosine_sd_{}", nearest), 0.2 + 0.01 * decay);
                    }
                row(length, layer, -1, 0, "output_norm", 2 + layer + noise(v, seed, layer, 0.2));
                for (const auto& [name, normal] : quantiles)
                    row(length, layer, -1, 0, fmt::format("logit_q{}", name),
                        normal + 0.1 * static_cast<double>(v + 1) * normal * normal);
            }
        for (int layer = 0; layer < sweep_.layers; ++layer)
            for (int head = 0; head < 2; ++head)
                for (const char* name : {"previous_score", "induction_score", "retrieval_score"})
                    row(0, layer, head, 0, name, layer == 1 && head == 0 ? 0.9 : 0.1);
        for (int layer = 0; layer < sweep_.layers; ++layer)
            for (int head = 0; head < 2; ++head)
                row(0, layer, head, 0, "scalar.r",
                    0.2 + 0.05 * layer + 0.01 * head + noise(v, seed, layer, 0.01));
        row(0, -1, -1, 0, "scalar.tau", 10 + static_cast<double>(v));
        return out;
    }

    SampleSweep sweep_;
};

}  // namespace longreach::test
