#include "train/experiment.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "base/text.h"
#include "config/field_info.h"
#include "law/law.h"
#include "model/attention_score.h"
#include "model/changed_layers.h"
#include "model/attention_angle.h"
#include "model/registry.h"
#include "model/score_checks.h"
#include "train/batch_source.h"
#include "train/file_name.h"

namespace longreach::train {

namespace {
// Far above any realistic value; these limits keep every product and sum of counts within 64 bits.
constexpr int64_t most_batch_tokens = int64_t{1} << 31;
constexpr int64_t most_tokens = int64_t{1} << 60;

// Whether `text` holds characters that control a terminal or break the lines of a file: C0, DEL,
// and C1 in UTF-8.
bool has_control_characters(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte < 0x20 || byte == 0x7f) return true;
        if (byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0)
            return true;
    }
    return false;
}
}  // namespace

void RunConfig::fields(config::Fields& f) {
    f.text("name", name, {"names the run directory <dir>/<name>"});
    f.text("dir", dir, {"where run directories live", true});
    f.integer("seed", seed, {.min = 0}, {"seed of everything that has none of its own"});
    f.text("init_from", init_from,
           {"run or checkpoint whose weights this run starts from; empty: fresh weights"});
    f.flag("init_other_tokenizer", init_other_tokenizer,
           {.help = "takes the weights of init_from although another tokenizer made its tokens",
            .acts = config::unless("init_from", "")});
    f.integer("log_every", log_every, {.min = 1}, {"steps between console and metrics lines", true});
    f.flag("events", events, {"writes event files for TensorBoard to <dir>/<name>/events", true});
}

void SeedConfig::fields(config::Fields& f) {
    f.integer("init", init, {.min = -1}, {"seed of the initial weights; -1: run.seed"});
    f.integer("data", data, {.min = -1}, {"seed of the data order; -1: run.seed"});
}

void StageConfig::fields(config::Fields& f) {
    f.integer("steps", steps, {.min = 0},
              {"length of the stage in steps; give either steps or tokens", true});
    f.integer("tokens", tokens, {.min = 0, .max = most_tokens, .tokens = true},
              {"length of the stage in tokens, rounded up to whole steps", true});
    f.integer("context", context, {.min = 1, .max = int64_t{1} << 31, .tokens = true},
              {"tokens per training sequence"});
    f.integer("batch_tokens", batch_tokens, {.min = 0, .max = most_batch_tokens, .tokens = true},
              {"tokens per step in this stage; 0: batch.tokens"});
    f.integer("window", window, {.min = 0, .tokens = true},
              {"narrows the windows of windowed layers to at most this; 0: as configured"});
    f.number("lr", lr, {.min = 0, .max = 1e3}, {"multiplies every learning rate in this stage"});
    f.any("mixture", mixture,
          {"weights of the sources in this stage, an object of name and weight, 0 for those not named; null: "
           "those of data.mixture"});
}

void WindowWarmupConfig::fields(config::Fields& f) {
    f.integer("to", to, {.min = 0, .max = int64_t{1} << 31, .tokens = true},
              {"window that windowed layers reach at the end of the run, in tokens; 0: no warmup"});
    f.integer("from", from, {.min = 1, .max = int64_t{1} << 31, .tokens = true},
              {.help = "smallest window", .acts = config::unless("to", "0")});
    f.integer("multiple", multiple, {.min = 1, .max = int64_t{1} << 31, .tokens = true},
              {.help = "windows are rounded up to multiples", .acts = config::unless("to", "0")});
}

void BatchConfig::fields(config::Fields& f) {
    f.integer("tokens", tokens, {.min = 1, .max = most_batch_tokens, .tokens = true},
              {"tokens per optimiser step"});
    f.integer(
        "micro_tokens", micro_tokens, {.min = 0, .max = most_batch_tokens, .tokens = true},
        {"tokens per forward and backward pass; smaller needs less memory; 0: a step in as many passes as its "
         "gradient has leaves, at least one sequence each, so that any number of ranks gives the same bits"});
    f.integer(
        "leaves", leaves, {.min = 1, .max = 4096},
        {"a power of two: the most partial sums of a step's gradient that are added as a tree, and the most "
         "ranks that a run may have"});
}

int64_t BatchConfig::micro_of(int64_t step_tokens, int64_t context) const {
    if (micro_tokens > 0) return micro_tokens;
    const int64_t sequences = step_tokens / context;
    int64_t each = std::max<int64_t>(1, sequences / leaves);
    while (sequences % each != 0) --each;
    return each * context;
}

void CheckpointConfig::fields(config::Fields& f) {
    f.integer("every", every, {.min = 0}, {"steps between checkpoints; 0: only at the end", true});
    f.integer("keep", keep, {.min = 1}, {"newest checkpoints kept", true});
    f.flag("at_start", at_start, {"also save the weights of step 0", true});
    f.flag("keep_optimizer", keep_optimizer,
           {"false: the checkpoint of the last step holds only the weights, and those before it go", true});
}

void SystemConfig::fields(config::Fields& f) {
    f.choice<Device>("device", device,
                     {{Device::automatic, "auto", "a GPU when one answers, else the CPU"},
                      {Device::cpu, "cpu"},
                      {Device::cuda, "gpu", "as cuda"},
                      {Device::cuda, "cuda"}},
                     {"where the run happens", true});
    f.choice<PrecisionChoice>(
        "precision", precision,
        {{PrecisionChoice::automatic, "auto", "fp32 on a CPU, bf16 on a GPU"},
         {PrecisionChoice::fp32, "fp32"},
         {PrecisionChoice::bf16, "bf16",
          "inputs of matrix products rounded to bf16, on a GPU activations too; sums and weights in fp32"}},
        {"arithmetic of matrix products"});
    f.integer(
        "threads", threads, {.min = 0, .max = 1024},
        {"CPU threads; 0: all this process may use, fewer while other programs keep the machine busy. Never "
         "changes a result",
         true});
    f.flag(
        "recompute", recompute,
        {"training keeps of every block only its input and computes the rest again in the backward pass: less memory, "
         "about a third more work. Never changes a result",
         true});
    f.integer("device_timeout", device_timeout, {.min = 0, .max = 86400},
              {.help = "seconds after which a GPU that has ended no operation counts as hung and the process "
                       "ends with code 12; 0: never",
               .resumable = true,
               .acts = config::unless("device", "cpu")});
}

void Experiment::fields(config::Fields& f) {
    f.section("run", run, {"identity of the run"});
    f.section("seed", seed, {"separate seeds, for pairing runs"});
    f.section("model", model, {"architecture"});
    f.section("data", data, {"token streams"});
    f.list("stages", stages, {"training stages in order; a growing context is context-length warmup"});
    f.section("window_warmup", window_warmup, {"windows that grow with the steps"});
    f.section("batch", batch, {"tokens per step"});
    f.section("loss", loss, {"what a training loss counts"});
    f.section("positions", positions, {"positions of training sequences"});
    f.section("optimizer", optimizer, {"how weights move"});
    f.section("train", train, {"what a run does about trouble"});
    f.section("eval", eval, {"losses by context length"});
    f.section("probe", probe, {"what attention does while a run trains"});
    f.section("checkpoint", checkpoint, {"what is saved, and when"});
    f.section("parallel", parallel, {"several ranks"});
    f.section("system", system, {"device, precision, threads"});
}

void Experiment::check(config::Problems& p) {
    if (model.train_context == 0 && !stages.empty()) model.train_context = stages.back().context;
    // A config that continues a run may start from the run's resolved one, which has the L_train of that run.
    if (p.is_set("stages") && p.is_inherited("model.train_context") && !stages.empty() &&
        stages.back().context != model.train_context)
        p.warn("stages",
               fmt::format("the last stage trains at {} tokens, but model.train_context, the L_train "
                           "of formulas, is inherited as {}: set it, to 0 for the last stage's context",
                           stages.back().context, model.train_context));
    // The sections in which an evaluation may count keys; layouts start from model.attention.
    std::set<std::string> counting;
    if (!eval.rope.score_change(false).empty() && knows_layouts())
        for (const int64_t l : layers_of_rope()) counting.insert({"model.attention", model.layout_path(l)});
    model.check(p, counting);
    data.check(p, model.vocab_size);
    optimizer.check(p);
    train.spike.check(p);
    eval.check(p);
    probe.check(p);
    if (probe.tokens > 0 && !probe_lengths().empty() && probe.tokens < probe_lengths().back())
        p.add("probe.tokens",
              fmt::format("{} tokens are fewer than one sequence of the largest length {}", probe.tokens,
                          probe_lengths().back()),
              probe.lengths.empty() ? "eval.lengths" : "probe.lengths");

    if (run.name.empty() || run.name.find('/') != std::string::npos || run.name[0] == '.')
        p.add("run.name", fmt::format("'{}' is not a plain directory name", one_line(run.name)));
    if (system.device == Device::cuda && eval.piece > 0 && !eval.lengths.empty() &&
        eval.lengths.back() > eval.piece)
        p.add("eval.piece", "a GPU reads whole sequences", "system.device");
    if (const std::string problem = too_long(run.name); !problem.empty()) p.add("run.name", problem);
    if (has_control_characters(run.name))
        p.add("run.name", fmt::format("{} holds control characters", quoted(run.name)));
    if (has_control_characters(run.dir))
        p.add("run.dir", fmt::format("{} holds control characters", quoted(run.dir)));
    if (stages.empty()) {
        p.add("stages", "at least one stage is needed");
        return;
    }
    if (model.positions > 0 && !eval.lengths.empty() && table_rows() > model.positions)
        p.add("model.positions",
              fmt::format("{} learned positions are fewer than the {} tokens of the longest sequence",
                          model.positions, table_rows()),
              block_tokens() > model.positions ? "stages" : "eval.lengths");
    const bool all_known = knows_layouts();
    bool windowed = !all_known;  // the contents of a missing layout are unknown
    for (int64_t l = 0; all_known && l < model.layers; ++l)
        windowed = windowed || (model.layer_attention(l).attends() && model.layer_attention(l).window > 0);
    if (!check_stages(p, windowed)) return;
    const auto no_effect = [&](const char* key, const char* reason, const char* other) {
        p.no_effect(key, reason, other);
    };
    check_layers(p);
    check_task(p);
    check_loss(p);
    check_window_warmup(p, windowed);
    if (seed.init >= 0 && seed.data >= 0)
        no_effect("run.seed", "seed.init and seed.data are both set", "seed.init");
    if (std::all_of(stages.begin(), stages.end(), [](const StageConfig& s) { return s.batch_tokens > 0; }))
        no_effect("batch.tokens", "every stage has its own batch_tokens", "stages.0.batch_tokens");
    if (model.head.tied && optimizer.matrices == optim::MatrixOptimizer::muon)
        no_effect("optimizer.adam.weight_decay",
                  "Muon has the matrices and the head is tied to the embedding", "model.head.tied");
}

bool Experiment::check_stages(config::Problems& p, bool windowed) const {
    if (!std::has_single_bit(static_cast<uint64_t>(batch.leaves)))
        p.add("batch.leaves", fmt::format("{} is not a power of two", batch.leaves));
    int64_t consumed = 0;
    const int64_t block = block_tokens();
    for (size_t i = 0; i < stages.size(); ++i) {
        const StageConfig& s = stages[i];
        const std::string path = fmt::format("stages.{}", i);
        data.check_weights(p, path + ".mixture", s.mixture);
        if ((s.steps > 0) == (s.tokens > 0)) p.add(path, "needs exactly one of steps and tokens, above zero");
        const int64_t per_step = s.batch_tokens > 0 ? s.batch_tokens : batch.tokens;
        const std::string per_step_path = s.batch_tokens > 0 ? path + ".batch_tokens" : "batch.tokens";
        const int64_t micro = batch.micro_tokens;
        const bool divides = per_step % s.context == 0;  // else the context is the problem, once
        if (!divides)
            p.add(path + ".context",
                  fmt::format("{} does not divide the {} tokens of a step", s.context, per_step),
                  per_step_path);
        if (micro > 0 && per_step % micro != 0)
            p.add("batch.micro_tokens",
                  fmt::format("{} does not divide the {} tokens of a step", micro, per_step), per_step_path);
        if (divides && micro > 0 && micro % s.context != 0)
            p.add("batch.micro_tokens",
                  fmt::format("{} is not a multiple of the context {}", micro, s.context), path + ".context");
        if (divides && block % s.context != 0)
            p.add(
                path + ".context",
                fmt::format("{} does not divide {}, the largest context, in whose blocks the data is ordered",
                            s.context, block));
        if (divides && consumed % s.context != 0)
            p.add(path + ".context",
                  fmt::format(
                      "the stages before consume {} tokens, not a multiple of this context {}; choose their "
                      "steps so that they do",
                      consumed, s.context));
        const int64_t steps = s.steps > 0 ? s.steps : (s.tokens + per_step - 1) / per_step;
        if (steps > (most_tokens - consumed) / per_step) {
            p.add(path, fmt::format("the stages up to here consume more than {} tokens", most_tokens));
            return false;
        }
        consumed += steps * per_step;
        if (s.window > 0 && !windowed)
            p.no_effect(path + ".window", "no layer has a window", "model.attention.window");
    }
    return true;
}

void Experiment::check_loss(config::Problems& p) const {
    std::set<int64_t> contexts;
    for (const StageConfig& s : stages) contexts.insert(s.context);
    for (const int64_t context : contexts) try {
            loss.weights(context, model.train_context);
        } catch (const law::FormulaError& error) {
            return p.add("loss.weight", fmt::format("{}: {}", error.what(), law::marked(loss.weight, error)));
        } catch (const Error& error) {
            return p.add("loss.weight", error.what(), "stages");
        }
}

void Experiment::check_window_warmup(config::Problems& p, bool windowed) const {
    if (window_warmup.to == 0) return;
    if (!windowed) p.no_effect("window_warmup.to", "no layer has a window", "model.attention.window");
    if (window_warmup.from > window_warmup.to)
        p.add("window_warmup.from", "is above the last window", "window_warmup.to");
    for (size_t i = 0; i < stages.size(); ++i)
        if (stages[i].window > 0)
            p.add(fmt::format("stages.{}.window", i), "windows follow the stages or the warmup, not both",
                  "window_warmup.to");
}

bool Experiment::knows_layouts() const {
    for (int64_t l = 0; l < model.layers; ++l) {
        const std::string name = model.layout_name(l);
        if (!name.empty() && model.layouts.count(name) == 0) return false;
    }
    return true;
}

// Checks that depend on the layers which pattern and layouts produce.
void Experiment::check_layers(config::Problems& p) const {
    if (!knows_layouts()) return;  // reported elsewhere
    bool plain = false, uses_context = eval.rope.active() || law::mentions(loss.weight, "L");
    // Path of a layer that breaks sticks, of one without softmax, and of one whose channels fade.
    std::string sticks, others, fading;
    for (int64_t l : model.distinct_attention_layers()) {
        const model::AttentionConfig& a = model.layer_attention(l);
        const std::string path = model.layout_path(l);
        const bool fades = !model::fading_term(a).empty();
        plain = plain || (a.qk.kind == model::QkKind::none && a.normaliser == Normaliser::softmax && !fades);
        if (fades) fading = path + ".score";
        if (a.normaliser == Normaliser::stick_breaking) sticks = path + ".normaliser";
        if (a.normaliser != Normaliser::softmax) others = path + ".normaliser";
        try {
            const model::LayerScore score = model::layer_score(model, l);
            uses_context = uses_context || score.law.uses_context();
            if (a.normaliser == Normaliser::stick_breaking && score.has_square)
                p.add(
                    path + ".score",
                    "si_interp defines scores up to a constant per query, which stick-breaking does not ignore",
                    sticks);
            const law::Angle angle = model::trained_angle(model, l);
            const model::ScalingConfig& scaling = a.angle_scaling;
            uses_context = uses_context || law::mentions(model::angle_written_out(a), "L") ||
                           (scaling.active() && (scaling.factor == 0 || scaling.original_context == 0));
            const std::string turn = angle.first_not_finite(table_rows());
            if (!turn.empty()) p.add(path + ".angle", fmt::format("not a finite number: {}", turn));
            for (const int64_t length : every_length()) {
                const std::string growth =
                    angle.unrepresentable_growth(std::max(length, model.train_context));
                if (!growth.empty()) return p.add(path + ".angle", growth);
            }
            if (a.output_norm.kind == model::OutputNorm::position) {
                uses_context = uses_context || law::mentions(a.output_norm.factor, "L");
                if (data.document_mask)
                    p.add(
                        path + ".output_norm.kind",
                        "position counts from the start of the sequence, where a document mask hides tokens",
                        "data.document_mask");
                const std::vector<double> factors = law::tabulate(model::output_factor(model, l).near[0],
                                                                  law::Variable::p, 0, table_rows(), {});
                const auto wrong = std::find_if(factors.begin(), factors.end(), [](double f) {
                    return !std::isfinite(static_cast<float>(f));
                });
                if (wrong != factors.end())
                    p.add(path + ".output_norm.factor",
                          fmt::format("{} at position {}", *wrong, wrong - factors.begin()));
            }
        } catch (const model::ScoreError&) {
            return;  // reported elsewhere
        }
        if (a.score_count == model::ScoreCount::document && !data.document_mask)
            p.add(path + ".score_count", "document needs the document mask", "data.document_mask");
    }
    model::check_scores(model, every_length(), p);
    if (optimizer.qk_clip.limit > 0 && !plain)
        p.no_effect("optimizer.qk_clip.limit",
                    "every layer norms its queries or keys, fades its channels, or has no softmax",
                    "model.attention.qk.kind");
    if (eval.rope.far_pairs() && !sticks.empty())
        p.add(eval.rope.angle_key(), "stick-breaking attention has no far pairs with angles of their own",
              sticks);
    if (eval.rope.far_pairs() && !fading.empty())
        p.add(eval.rope.angle_key(), "keys whose channels fade have no far pairs with angles of their own",
              fading);
    if (eval.rope.top_k > 0 && !fading.empty())
        p.add("eval.top_k", "not over scores whose channels fade", fading);
    if (eval.rope.top_k > 0 && !others.empty())
        p.add("eval.top_k", "only a softmax is computed over the largest scores", others);
    if (eval.rope.top_k > 0 && system.device != Device::cpu)
        p.add("eval.top_k", "no GPU computes it: system.device must be cpu", "system.device");
    bool indexed = false;
    int64_t most_sequences = 0;  // of a micro-batch
    for (const Stage& s : resolved_stages())
        most_sequences = std::max(most_sequences, s.micro_tokens / s.context);
    for (const int64_t l : model.distinct_layers()) {
        const model::AttentionConfig& a = model.layer_attention(l);
        indexed = indexed || (a.attends() && a.index_heads > 0);
        for (const model::LayerPart* part : model::parts_of(a)) {
            const std::string path = model.layout_path(l) + std::string(part->field);
            if (system.device != Device::cpu && !part->no_gpu.empty())
                p.add(path, fmt::format("{}: system.device must be cpu", part->no_gpu), "system.device");
            if (most_sequences < part->sequences)
                p.no_effect(path, "a micro-batch is one sequence", "batch.micro_tokens");
        }
    }
    if (eval.rope.top_k > 0 && eval.rope.top_k_by == model::TopBy::index && !indexed)
        p.add("eval.top_k_by", "no layer has an index of keys", "model.attention.index_heads");
    if (eval.rope.top_k > 0 && model.distinct_attention_layers().empty())
        p.no_effect("eval.top_k", "no layer attends", "model.attention.mixer");
    if (!uses_context && model.train_context != stages.back().context)
        p.no_effect("model.train_context", "no formula uses it", "model.attention.score");
    check_positions(positions, model, block_tokens(), p);
    check_rope(p);
}

// Layers that eval.rope changes at any evaluated length, judged only by its choice of layers.
std::vector<int64_t> Experiment::layers_of_rope() const {
    std::vector<int64_t> layers;
    for (int64_t l = 0; l < model.layers; ++l) {
        const model::LayerChoice choice = model::layer_choice(model, eval.rope, l);
        const bool chosen = std::any_of(eval.lengths.begin(), eval.lengths.end(), [&](int64_t length) {
            return length > model.train_context && choice.at(length);
        });
        if (chosen) layers.push_back(l);
    }
    return layers;
}

void Experiment::check_rope(config::Problems& p) const {
    const model::PostHocConfig& rope = eval.rope;
    if (!rope.active() || !rope.layers_readable()) return;
    if (!rope.takes_full() && !rope.takes_all()) {
        std::vector<std::string> known{"attention"};
        for (const auto& [layout, unused] : model.layouts) known.push_back(layout);
        bool unknown = false;
        for (const std::string& name : rope.layer_names()) {
            if (std::find(known.begin(), known.end(), name) != known.end()) continue;
            unknown = true;
            std::vector<std::string> words = known;
            if (rope.layers.is_string()) words.insert(words.end(), {"full", "all"});
            const std::vector<std::string> near = nearest(name, words, 2);
            p.add("eval.rope.layers",
                  fmt::format("no layout is named '{}': {}", name,
                              near.empty() ? "known are " + join(known, ", ")
                                           : "did you mean " + alternatives(near) + "?"),
                  "model.layouts");
        }
        if (unknown) return;
    }
    if (!eval.lengths.empty() && eval.lengths.back() <= model.train_context) {
        for (const char* path : {"eval.rope", "eval.score", "eval.angle"})
            p.no_effect(path, fmt::format("no length is above the training context {}", model.train_context),
                        "eval.lengths");
        return;
    }
    const auto rotated = [&](int64_t l) { return !model::trained_angle(model, l).near.empty(); };
    const std::vector<int64_t> all = model.distinct_attention_layers(), chosen = layers_of_rope();
    const char* blamed = rope.turns() ? rope.angle_key() : "eval.rope.scale";
    if (rope.needs_angle() && std::none_of(all.begin(), all.end(), rotated))
        return p.no_effect(blamed, "no layer has rotary positions", "model.attention.angle");
    if (chosen.empty())
        return p.add("eval.rope.layers",
                     rope.takes_full() ? "no layer attends to a whole sequence above the training context: "
                                         "all, or layout names, choose others"
                                       : "no layer is of these layouts",
                     "model.pattern");
    if (rope.needs_angle() && std::none_of(chosen.begin(), chosen.end(), rotated))
        p.add("eval.rope.layers",
              fmt::format("no layer of those chosen ({}) has rotary positions", fmt::join(chosen, ", ")),
              blamed);
    for (const int64_t l : rope.scale == "clip_logn" ? chosen : std::vector<int64_t>())
        if (model::layer_score(model, l).counts)
            p.add("eval.rope.scale", "clip_logn is for models whose scores do not already grow with n",
                  model.layout_path(l) + ".score");
    for (const int64_t l : rope.score.is_null() ? std::vector<int64_t>() : chosen)
        model::check_score_change(model, rope, l, evaluated_lengths(), p);
    for (const int64_t l : chosen) try {
            for (const int64_t length : rope.turns() ? eval.lengths : std::vector<int64_t>()) {
                const std::string problem =
                    model::changed_angle(model, l, rope, length).first_not_finite(length);
                if (!problem.empty())
                    return p.add(rope.angle_key(),
                                 fmt::format("not a finite number at length {}: {}", length, problem));
            }
        } catch (const model::ScoreError& e) {
            return p.add(e.path(model.layout_path(l)), e.what());
        }
}

void Experiment::check_task(config::Problems& p) const {
    for (size_t i = 0; i < stages.size(); ++i) {
        const std::string problem = batch_source_type(data).problem(*this, stages[i].context);
        if (!problem.empty()) p.add(fmt::format("stages.{}.context", i), problem, "data.task.kind");
    }
}

uint64_t Experiment::task_seed() const {
    return data.task.seed >= 0 ? static_cast<uint64_t>(data.task.seed) : data_seed();
}

std::vector<Stage> Experiment::resolved_stages() const {
    std::vector<Stage> out;
    int64_t step = 0, token = 0;
    for (const StageConfig& s : stages) {
        Stage r;
        r.first_step = step;
        r.first_token = token;
        r.context = s.context;
        r.tokens_per_step = s.batch_tokens > 0 ? s.batch_tokens : batch.tokens;
        r.micro_tokens = batch.micro_of(r.tokens_per_step, r.context);
        r.steps = s.steps > 0 ? s.steps : (s.tokens + r.tokens_per_step - 1) / r.tokens_per_step;
        r.window = s.window;
        r.lr = s.lr;
        step += r.steps;
        token += r.steps * r.tokens_per_step;
        out.push_back(r);
    }
    return out;
}

std::vector<data::Phase> Experiment::phases() const {
    std::vector<data::Phase> phases;
    const std::vector<Stage> resolved = resolved_stages();
    for (size_t i = 0; i < stages.size(); ++i) {
        std::vector<double> weights = data.weights(stages[i].mixture);
        if (!phases.empty() && phases.back().weights == weights) continue;
        phases.push_back({static_cast<uint64_t>(resolved[i].first_token), std::move(weights)});
    }
    return phases;
}

Stage Experiment::stage_at(int64_t step) const {
    const std::vector<Stage> all = resolved_stages();
    for (const Stage& s : all)
        if (step < s.first_step + s.steps) return s;
    return all.back();
}

int64_t Experiment::window_at(int64_t step) const {
    if (window_warmup.to == 0) return stage_at(step).window;
    const double grown = static_cast<double>(window_warmup.to) * static_cast<double>(step) /
                         static_cast<double>(total_steps());
    const int64_t multiples =
        static_cast<int64_t>(std::ceil(grown / static_cast<double>(window_warmup.multiple)));
    return std::max(window_warmup.from, multiples * window_warmup.multiple);
}

int64_t Experiment::total_steps() const {
    const Stage last = resolved_stages().back();
    return last.first_step + last.steps;
}

int64_t Experiment::block_tokens() const {
    int64_t block = 1;
    for (const StageConfig& s : stages) block = std::max(block, s.context);
    return block;
}

int64_t Experiment::table_rows() const {
    return every_length().back();
}

std::vector<int64_t> Experiment::every_length() const {
    std::vector<int64_t> all = evaluated_lengths();
    for (const StageConfig& s : stages) all.push_back(s.context);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

int64_t Experiment::eval_batch_tokens(int64_t piece) const {
    int64_t micro = 0;
    for (const Stage& s : resolved_stages()) micro = std::max(micro, s.micro_tokens);
    return eval_batch_tokens(piece, micro, evaluated_lengths());
}

int64_t Experiment::eval_batch_tokens(int64_t piece, int64_t micro_tokens,
                                      std::span<const int64_t> lengths) const {
    int64_t tokens = eval.batch_tokens > 0 ? eval.batch_tokens : micro_tokens;
    const std::vector<int64_t>& whole = probe_lengths();  // of probes, which see whole sequences
    for (const int64_t length : lengths) {
        const bool probed = probe.every > 0 && std::count(whole.begin(), whole.end(), length) > 0;
        tokens = std::max(tokens, piece > 0 && !probed ? std::min(piece, length) : length);
    }
    if (data.task.kind != data::TaskKind::none)
        tokens = std::max(tokens, block_tokens());  // its samples are scored, too
    return tokens;
}

std::vector<int64_t> Experiment::evaluated_lengths() const {
    std::vector<int64_t> all = eval.lengths;
    if (probe.every > 0) all.insert(all.end(), probe.lengths.begin(), probe.lengths.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

}  // namespace longreach::train
