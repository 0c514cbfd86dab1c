#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/units.h"
#include "eval/tables.h"
#include "tasks/task_batches.h"
#include "train/device.h"
#include "train/signals.h"

namespace longreach {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int64_t message_words = 4096;  // of 4 bytes: a TrainState as text has less than 1 KiB

TokenStream open_stream(const Experiment& experiment, const std::vector<std::string>& paths,
                        const Surroundings& surroundings) {
    if (!surroundings.no_data.empty()) return TokenStream::absent();
    return TokenStream::open(paths, experiment.data.stream_options(experiment.model.vocab_size));
}

}  // namespace

Trainer::Trainer(const Experiment& experiment, Console& console, Ops& ops, int rank, int ranks,
                 const Surroundings& surroundings)
    : experiment_(experiment),
      surroundings_(surroundings),
      console_(console),
      stages_(experiment.resolved_stages()),
      total_steps_(experiment.total_steps()),
      ops_(&ops),
      rank_(rank),
      ranks_(ranks),
      train_stream_(open_stream(experiment, experiment.data.train, surroundings)),
      val_stream_(open_stream(experiment, experiment.data.val, surroundings)),
      batch_plan_(surroundings.no_data.empty() ? train_stream_.tokens()
                                               : static_cast<uint64_t>(experiment.block_tokens()) + 1,
                  experiment.block_tokens(), experiment.data_seed(), experiment.data.shuffle),
      model_(experiment.model, experiment.table_rows(), experiment.eval.rope),
      optimizer_(experiment.optimizer, model_.params(), {rank, ranks, experiment.parallel.shard_optimizer}),
      tree_(experiment.batch.leaves, rank, ranks),
      traffic_(experiment.parallel, optimizer_.ownership(), model_.segments(), rank),
      arena_(ops) {
    check_ranks();
    if (surroundings.no_data.empty()) check_data();
    if (experiment.data.task.kind == TaskKind::none)
        source_ = std::make_unique<StreamBatches>(train_stream_, batch_plan_);
    else
        source_ = std::make_unique<TaskBatches>(experiment.task_generator(&train_stream_));
    if (experiment.optimizer.qk_clip.limit > 0)
        model_.watch_scores(experiment.optimizer.qk_clip.measure == ScoreMeasure::absolute);
    plan(arena_);
    describe();
    check_memory();
}

void Trainer::check_data() const {
    require(val_stream_.tokens() > static_cast<uint64_t>(experiment_.eval.lengths.back()), ExitCode::data,
            "data.val has {} tokens; eval.lengths asks for sequences of {}", val_stream_.tokens(),
            experiment_.eval.lengths.back());
    // Now, not at the first validation hours from here.
    const EvalConfig& eval = experiment_.eval;
    const int64_t fewest = eval.every > 0 ? std::min(eval.tokens, eval.final_tokens) : eval.final_tokens;
    LengthEvaluator::check_request(val_stream_,
                                   make_request(eval, fewest, 0, experiment_.data.document_mask));
    if (experiment_.probe.every > 0)
        LengthEvaluator::check_request(val_stream_, probe_request().evaluation());
    if (scores_task())
        experiment_.task_generator(&val_stream_).make(experiment_.block_tokens(), first_evaluation_sample);
}

void Trainer::allocate() {
    peak_flops_ = measure_peak(*ops_);  // while there is room for its matrices
    check_memory();
    held_before_plan_ = held_bytes();
    arena_.commit();
    plan(arena_);
    model_.fill_tables(*ops_);
    host_losses_.resize(static_cast<size_t>(most_micro_batches()));

    LoaderOptions options;
    options.max_tokens = most_micro_tokens();
    options.documents = experiment_.data.document_mask;
    loader_ = std::make_unique<Loader>(*source_, options);
}

Trainer::~Trainer() = default;

void Trainer::plan(Arena& arena, int64_t longest) {
    const bool documents = experiment_.data.document_mask;
    const int64_t micro = most_micro_tokens();
    weights_ = plan_weights(arena, model_.params());
    tree_.plan(arena, model_.params().size(), most_micro_batches());
    traffic_.plan(arena);
    optimizer_.plan(arena, *ops_);
    arena.group("ranks");
    signals_ = arena.reserve("signals", DType::f64, {ranks_});
    if (ranks_ > 1) messages_ = arena.reserve("messages", DType::i32, {message_words});
    model_.plan_tables(arena);
    if (ranks_ > 1 && model_.score_maxima().count() > 0)
        maxima_ =
            arena.reserve("score_maxima of all ranks", DType::f32, {ranks_, model_.score_maxima().count()});

    // Training and validation never run at the same time: their activations share memory.
    const int64_t shared = arena.mark();
    arena.group("batch, training");
    tokens_ = arena.reserve("tokens", DType::i32, {micro});
    targets_ = arena.reserve("targets", DType::i32, {micro});
    if (documents) doc_start_ = arena.reserve("doc_start", DType::i32, {micro});
    micro_losses_ = arena.reserve("losses", DType::f64, {most_micro_batches()});
    PlanSize size{micro, {}};
    for (const Stage& s : stages_) size.lengths.push_back(s.context);
    model_.plan_training(arena, *ops_, size, documents);

    arena.rewind(shared);
    PlanSize eval_size{0, evaluated_up_to(longest)};
    eval_size.tokens = evaluated_tokens(eval_size.lengths.back());
    const int64_t eval_tokens = eval_size.tokens;
    evaluator_.plan(arena, eval_tokens, documents, rank_, ranks_);
    if (scores_task()) {
        task_evaluator_.plan(arena, eval_tokens, documents, rank_, ranks_);
        eval_size.lengths.insert(eval_size.lengths.end(), size.lengths.begin(), size.lengths.end());
    }
    model_.plan_evaluation(arena, *ops_, eval_size, documents);
    if (experiment_.probe.every > 0)
        probe_.plan(arena, experiment_.model, std::min(experiment_.probe_lengths().back(), longest));
}

void Trainer::describe() {
    const ParamTable& table = model_.params();
    std::map<std::string, int64_t> by_group;
    for (const Param& p : table.params()) by_group[name_of(p.group)] += p.count();
    std::string parameters;
    for (const auto& [group, count] : by_group)
        parameters += fmt::format("{}{} {}", parameters.empty() ? "" : ", ", group,
                                  human_count(static_cast<double>(count)));
    console_.line(fmt::format("model: {} parameters ({}), {} FLOP per training token at context {}",
                              human_count(static_cast<double>(table.count())), parameters,
                              human_count(model_.training_flops_per_token(stages_.back().context)),
                              stages_.back().context));
    int64_t tokens = 0;
    for (size_t i = 0; i < stages_.size(); ++i) {
        const Stage& s = stages_[i];
        console_.line(fmt::format("stage {}: {} steps of {} tokens at context {}, {} micro-batch{} each{}",
                                  i + 1, s.steps, human_count(static_cast<double>(s.tokens_per_step)),
                                  s.context, s.micro_batches(), s.micro_batches() == 1 ? "" : "es",
                                  s.lr == 1 ? "" : fmt::format(", lr x {}", s.lr)));
        tokens += s.steps * s.tokens_per_step;
    }
    if (ranks_ > 1) {
        const bool sharded = experiment_.parallel.shard_optimizer;
        console_.line(fmt::format("ranks: {}; {}; each sends {} per step", ranks_,
                                  sharded ? optimizer_.ownership().describe() : "all update everything",
                                  human_bytes(traffic_.bytes_per_step())));
    }
    const TaskKind task = experiment_.data.task.kind;
    if (!surroundings_.no_data.empty())
        console_.line(fmt::format("data: {} training tokens; not looked at: {}",
                                  human_count(static_cast<double>(tokens)), surroundings_.no_data));
    else
        console_.line(fmt::format(
            "data: {} training tokens ({} {}), {} validation tokens",
            human_count(static_cast<double>(tokens)),
            task == TaskKind::none
                ? fmt::format("{:.2f} epochs of", batch_plan_.epochs(static_cast<uint64_t>(tokens)))
                : fmt::format("samples of {}, text out of", name_of(task)),
            human_count(static_cast<double>(train_stream_.tokens())),
            human_count(static_cast<double>(val_stream_.tokens()))));
    console_.line("memory plan (activations of training and validation share theirs):\n" + arena_.table() +
                  fmt::format("  {:<24}{:>12}", "kernel scratch", human_bytes(ops_->scratch_bytes())));
}

const Stage& Trainer::stage_of(int64_t step) const {
    for (const Stage& s : stages_)
        if (step < s.first_step + s.steps) return s;
    return stages_.back();
}

bool Trainer::scores_task() const {
    return experiment_.data.task.kind != TaskKind::none && experiment_.data.task.samples > 0;
}

int64_t Trainer::scored_per_step(const Stage& stage) const {
    return stage.tokens_per_step / stage.context * source_->scored_per_sequence(stage.context);
}

void Trainer::start() {
    if (speaks()) start_from_files();
    if (ranks_ > 1) share_start();
    if (resumed_) {
        require(
            state_.data_fingerprint == train_stream_.fingerprint(), ExitCode::data,
            "the training data changed since step {}: a resumed run would not see the tokens it was promised",
            state_.step);
        if (state_.step > 0 && state_.step < total_steps_) {
            const Stage& s = stage_of(state_.step - 1);
            const int64_t planned = s.tokens_before(state_.step);
            require(planned == state_.tokens, ExitCode::usage,
                    "{} tokens were consumed in the {} steps done; the stages of this config would have "
                    "consumed {}",
                    state_.tokens, state_.step, planned);
        }
        optimizer_.set_updates(state_.updates);
        console_.line(fmt::format("resuming after step {}", state_.step));
    }
    weights_.round(*ops_);
    state_.data_fingerprint = train_stream_.fingerprint();
}

void Trainer::start_from_files() {
    const Team::Busy busy(*team_, "loading a checkpoint");
    if (auto loaded = directory_->load_newest(*ops_, model_.params(), weights_, total_steps_,
                                              state_exchange().tensors(), console_)) {
        resumed_ = true;
        state_ = loaded->state;
        optimizer_file_ = loaded->optimizer;
        if (ranks_ == 1 && !optimizer_file_.empty()) {
            StateExchange moments = state_exchange();
            load_optimizer(optimizer_file_, moments);
        }
        return;
    }
    std::vector<float> host;
    initialise(model_.params(), experiment_.init_seed(), host);
    ops_->upload(weights_.flat, host.data());
    if (experiment_.run.init_from.empty()) return;
    const Notice notice = [&](const std::string& text) { console_.line(text); };
    const Checkpoint source = find_checkpoint(experiment_.run.init_from, notice);
    load_weights(source, *ops_, model_.params(), weights_, true, notice);
    console_.line("starting from the weights of " + source.path);
}

void Trainer::request_until(int64_t step) {
    for (; requested_step_ < std::min(step, total_steps_); ++requested_step_) {
        const Stage& s = stage_of(requested_step_);
        const int64_t first = s.tokens_before(requested_step_);
        tree_.begin_step(s.micro_batches());
        for (int64_t m = tree_.own().first; m < tree_.own().end; ++m)
            loader_->request(
                {static_cast<uint64_t>(first + m * s.micro_tokens), s.micro_tokens / s.context, s.context});
    }
}

Trainer::StepOutcome Trainer::train_step() {
    const Stage& stage = stage_of(state_.step);
    request_until(state_.step + 2);
    model_.set_stage_window(experiment_.window_at(state_.step));
    const QkClipConfig& qk_clip = experiment_.optimizer.qk_clip;
    if (qk_clip.limit > 0) model_.clear_maxima(*ops_);
    const int64_t n = stage.micro_tokens;
    const double scored = static_cast<double>(scored_per_step(stage));
    const float scale = static_cast<float>(1.0 / scored);
    tree_.begin_step(stage.micro_batches());
    const GradientTree::Range own = tree_.own();
    for (int64_t m = own.first; m < own.end; ++m) {
        const MicroBatch micro = loader_->take();
        Batch batch{micro.request.batch, stage.context, tokens_.first(n), targets_.first(n), Tensor()};
        ops_->upload(batch.tokens, micro.tokens.data());
        ops_->upload(batch.targets, micro.targets.data());
        if (doc_start_) {
            batch.doc_start = doc_start_.first(n);
            ops_->upload(batch.doc_start, micro.doc_start.data());
        }
        const FlatParams gradients = tree_.begin(*ops_, m);
        const bool last = m + 1 == own.end;
        if (ranks_ > 1 && (m == own.first || last)) {
            // Weights still arrive during the first pass, gradients leave during the last.
            if (last) traffic_.completes(m);
            model_.forward_backward(*ops_, weights_, gradients, batch, scale, &traffic_);
            last ? tree_.advance(m) : tree_.end(*ops_, m);
        } else {
            const int64_t window = experiment_.window_at(state_.step);
            ops_->replay(fmt::format("{} {} {} {} {}", stage.context, n, stage.tokens_per_step, window,
                                     gradients.flat.data),
                         [&] { model_.forward_backward(*ops_, weights_, gradients, batch, scale); });
            tree_.end(*ops_, m);
        }
        ops_->sum(Tensor(micro_losses_.f64() + m, DType::f64, {1}), model_.training_losses(n));
    }
    if (ranks_ > 1) traffic_.finish_gradients();
    // Queued before the first wait: the only one of a step is for its losses and this.
    optimizer_.measure(*ops_, tree_.result());
    if (ranks_ > 1) share_scalars(stage.micro_batches());
    ops_->download(host_losses_.data(), micro_losses_.first(stage.micro_batches()));

    StepOutcome outcome;
    for (int64_t m = 0; m < stage.micro_batches(); ++m) outcome.loss += host_losses_[static_cast<size_t>(m)];
    outcome.loss /= scored;
    outcome.lr = schedule_multiplier(experiment_.optimizer.schedule, state_.step, total_steps_) * stage.lr;
    if (std::isfinite(outcome.loss)) {
        const Optimizer::Result result =
            optimizer_.step(*ops_, weights_, tree_.result(), outcome.lr, state_.step);
        outcome.gradient_norm = result.gradient_norm;
        outcome.applied = result.applied;
        if (result.applied && ranks_ > 1) traffic_.send_weights();
        if (qk_clip.limit > 0) clip_scores(outcome);
        if (result.applied && ranks_ == 1) weights_.round(*ops_);
    }
    state_.step += 1;
    state_.tokens += stage.tokens_per_step;
    state_.updates = optimizer_.updates();
    state_.bad_in_a_row = outcome.applied ? 0 : state_.bad_in_a_row + 1;
    state_.skipped += outcome.applied ? 0 : 1;
    busy_tokens_ += stage.tokens_per_step;
    busy_flops_ +=
        model_.training_flops_per_token(stage.context) * static_cast<double>(stage.tokens_per_step);
    return outcome;
}

void Trainer::validate(bool final) {
    if (speaks()) directory_->check_names();
    traffic_.settle();
    const EvalConfig& config = experiment_.eval;
    EvalRequest request = make_request(config, final ? config.final_tokens : config.tokens,
                                       experiment_.eval_batch_tokens(), experiment_.data.document_mask);
    request.seed = experiment_.data_seed();
    request.progress = [&](const std::string& text) { console_.status(text); };
    model_.set_stage_window(experiment_.window_at(state_.step - 1));
    const std::vector<LengthResult> results =
        evaluator_.run(*ops_, *comm_, model_, weights_, val_stream_, request);
    const double bytes_per_token = val_stream_.bytes_per_token();
    if (!speaks()) {
        if (scores_task()) validate_task();
        return;
    }
    for (const std::string& line : val_lines(results, state_.step, state_.tokens, bytes_per_token))
        val_csv_.append(first_cells(line, val_columns_));
    for (const std::string& line : positions_lines(results, state_.step)) positions_csv_.append(line);
    events_.validation(state_.step, results);
    events_.weights(state_.step, *ops_, model_.params(), weights_);
    std::string text = fmt::format("validation at step {}:", state_.step);
    for (const LengthResult& r : results) text += fmt::format("  {} {:.4f}", r.length, r.loss.mean());
    console_.line(text);
    if (scores_task()) validate_task();
}

// At the context that was trained on; other lengths, depths and tasks are `longreach eval --tasks`.
void Trainer::validate_task() {
    const TaskConfig& config = experiment_.data.task;
    TaskRequest request;
    request.tasks = {config.kind};
    request.lengths = {stage_of(state_.step - 1).context};
    request.samples = config.samples;
    request.batch_tokens = experiment_.eval_batch_tokens();
    request.config = config;
    request.seed = experiment_.task_seed();
    request.progress = [&](const std::string& text) { console_.status(text); };
    const std::vector<TaskRow> rows =
        task_evaluator_.run(*ops_, *comm_, model_, weights_, val_stream_, request);
    if (!speaks()) return;
    for (const std::string& line : task_lines(rows, state_.step)) tasks_csv_.append(line);
    console_.line(fmt::format("{} at {}: accuracy {:.3f} +- {:.3f}, margin {:.2f}", rows[0].task,
                              rows[0].length, rows[0].accuracy, rows[0].accuracy_error,
                              rows[0].margin.value_or(0)));
}

ProbeRequest Trainer::probe_request() const {
    ProbeRequest request;
    request.lengths = experiment_.probe_lengths();
    request.tokens = experiment_.probe.tokens;
    request.document_mask = experiment_.data.document_mask;
    request.seed = experiment_.data_seed();
    request.progress = [this](const std::string& text) { console_.status("probe: " + text); };
    return request;
}

void Trainer::probe() {
    traffic_.settle();
    model_.set_stage_window(experiment_.window_at(state_.step - 1));
    const ProbeResult result =
        probe_.run(*ops_, *comm_, model_, weights_, evaluator_, val_stream_, probe_request());
    if (!speaks()) return;
    for (const std::string& line : probe_lines(result.rows, state_.step)) probe_csv_.append(line);
    events_.scores(state_.step, result.scores);
}

void Trainer::save() {
    traffic_.settle();
    StateExchange moments = state_exchange();
    const bool weights_only = state_.step == total_steps_ && !experiment_.checkpoint.keep_optimizer;
    if (!speaks()) {
        if (!weights_only) moments.fetch_rest();
        return;
    }
    std::vector<std::pair<const char*, RecordFile*>> files = {
        {"metrics.jsonl", &metrics_}, {"val.csv", &val_csv_}, {"positions.csv", &positions_csv_}};
    // Of a run that does not probe for a while, the length stays as it was.
    if (experiment_.probe.every > 0) files.push_back({"probe.csv", &probe_csv_});
    if (scores_task()) files.push_back({"tasks.csv", &tasks_csv_});
    directory_->check_in_place();
    for (const auto& [name, file] : files) {
        file->sync();
        state_.file_bytes[name] = file->bytes();
    }
    const CheckpointParts parts{*ops_, model_.params(), weights_, moments};
    const Team::Busy busy(*team_, "saving a checkpoint");
    try {
        if (weights_only)
            directory_->save_weights_only(parts, state_, console_);
        else
            directory_->save(parts, state_, experiment_.checkpoint.keep, console_);
        failed_saves_ = 0;
    } catch (const Error& e) {
        directory_->check_in_place();  // whatever failed, a lost directory is the reason to give
        // A full disk in the middle of a long run must not throw the run away: the previous checkpoint is
        // intact.
        constexpr int tolerated = 3;
        const bool needed = state_.step == total_steps_ || stop_signal() != 0;
        if (e.code() != ExitCode::disk || needed || ++failed_saves_ >= tolerated) throw;
        if (!weights_only) moments.fetch_rest();
        console_.line(fmt::format("warning: no checkpoint at step {}: {}", state_.step, e.what()));
    }
    directory_->check_names();
}

ExitCode Trainer::run(RunDirectory* directory, Comm& comm, Team& team) {
    check((directory != nullptr) == (rank_ == 0), "rank {} and the run directory", rank_);
    directory_ = directory;
    comm_ = &comm;
    team_ = &team;
    if (speaks()) console_.line("run: " + directory_->path());
    allocate();
    traffic_.connect(*ops_, comm, weights_, tree_);
    start();
    if (state_.step >= total_steps_) {
        console_.line(fmt::format("nothing to do: all {} steps are done", total_steps_));
        return ExitCode::ok;
    }
    if (speaks()) open_records();
    requested_step_ = state_.step;
    started_ = Clock::now();
    const StopSignals signals;
    if (state_.step == 0 && experiment_.checkpoint.at_start) save();

    while (state_.step < total_steps_) {
        const Clock::time_point begin = Clock::now();
        const StepOutcome outcome = train_step();
        busy_seconds_ += seconds_since(begin);
        team.set_step(state_.step);
        const bool last = state_.step == total_steps_;
        record_step(outcome, last);
        compare_memory();
        if (state_.bad_in_a_row > experiment_.optimizer.max_bad_steps) {
            console_.line(fmt::format("giving up: {} steps in a row had a non-finite loss or gradient",
                                      state_.bad_in_a_row));
            events_.end(SessionEnd::failure);
            return ExitCode::numerics;
        }
        const int64_t eval_every = experiment_.eval.every, save_every = experiment_.checkpoint.every;
        if (last || (eval_every > 0 && state_.step % eval_every == 0)) validate(last);
        const int64_t probe_every = experiment_.probe.every;
        if (probe_every > 0 && (last || state_.step % probe_every == 0)) probe();
        const int signal = stop_signal();
        if (last || signal != 0 || (save_every > 0 && state_.step % save_every == 0)) save();
        if (signal != 0 && !last) {
            console_.line(fmt::format("stopped by {} after step {}; the same command resumes",
                                      strsignal(signal), state_.step));
            return ExitCode::stopped;
        }
    }
    events_.end(SessionEnd::success);
    ops_->synchronize();  // before the communicator goes
    return ExitCode::ok;
}

}  // namespace longreach
