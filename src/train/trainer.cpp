#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/units.h"
#include "train/device.h"
#include "train/signals.h"

namespace longreach::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Room for a TrainState as text, in 4 bytes each: less than 2 KiB and, per step in the
// spike window, two numbers.
int64_t message_words(const Experiment& experiment) {
    return 4096 + 16 * experiment.train.spike.window;
}

data::TokenStream open_stream(const Experiment& experiment, const std::vector<std::string>& paths,
                              const Surroundings& surroundings) {
    if (!surroundings.no_data.empty()) return data::TokenStream::absent();
    return data::TokenStream::open(paths, experiment.data.stream_options(experiment.model.vocab_size));
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
    source_ = make_source();
    if (experiment.optimizer.qk_clip.limit > 0)
        model_.watch_scores(experiment.optimizer.qk_clip.measure == optim::ScoreMeasure::absolute);
    plan(arena_);
    describe();
    check_memory();
}

void Trainer::check_data() const {
    require(val_stream_.tokens() > static_cast<uint64_t>(experiment_.eval.lengths.back()), ExitCode::data,
            "data.val has {} tokens; eval.lengths asks for sequences of {}", val_stream_.tokens(),
            experiment_.eval.lengths.back());
    // Now, not at the first validation hours from here.
    const eval::EvalConfig& eval = experiment_.eval;
    const int64_t fewest = eval.every > 0 ? std::min(eval.tokens, eval.final_tokens) : eval.final_tokens;
    eval::LengthEvaluator::check_request(val_stream_,
                                         eval::make_request(eval, fewest, 0, experiment_.data.document_mask));
    if (experiment_.probe.every > 0)
        eval::LengthEvaluator::check_request(val_stream_, probe_request().evaluation());
    if (experiment_.scores_task())
        experiment_.task_generator(&val_stream_)
            .make(experiment_.block_tokens(), tasks::first_evaluation_sample);
}

void Trainer::allocate() {
    peak_flops_ = measure_peak(*ops_);  // while there is room for its matrices
    check_memory();
    held_before_plan_ = held_bytes();
    arena_.commit();
    plan(arena_);
    model_.fill_tables(*ops_);

    data::LoaderOptions options;
    options.max_tokens = most_micro_tokens();
    options.documents = experiment_.data.document_mask;
    loader_ = std::make_unique<data::Loader>(*source_, options);
}

Trainer::~Trainer() = default;

void Trainer::plan(model::Arena& arena, int64_t longest) {
    const bool documents = experiment_.data.document_mask;
    const int64_t micro = most_micro_tokens();
    weights_ = model::plan_weights(arena, model_.params());
    tree_.plan(arena, model_.params().size(), most_micro_batches());
    traffic_.plan(arena);
    optimizer_.plan(arena, *ops_);
    arena.group("ranks");
    signals_ = arena.reserve("signals", DType::f64, {ranks_});
    if (ranks_ > 1) messages_ = arena.reserve("messages", DType::i32, {message_words(experiment_)});
    model_.plan_tables(arena);
    if (ranks_ > 1 && model_.score_maxima().count() > 0)
        maxima_ =
            arena.reserve("score_maxima of all ranks", DType::f32, {ranks_, model_.score_maxima().count()});

    // Training and validation never run at the same time: their activations share memory.
    const int64_t shared = arena.mark();
    arena.group("batch, training");
    batch_.plan(arena, micro, {.documents = documents});
    micro_losses_ = arena.reserve("losses", DType::f64, {most_micro_batches()});
    model::PlanSize size{micro, {}};
    for (const Stage& s : stages_) size.lengths.push_back(s.context);
    model_.plan_training(arena, *ops_, size, documents);

    arena.rewind(shared);
    model::PlanSize eval_size{0, evaluated_up_to(longest)};
    eval_size.tokens = evaluated_tokens(eval_size.lengths.back());
    const int64_t eval_tokens = eval_size.tokens;
    evaluator_.plan(arena, eval_tokens, documents, rank_, ranks_);
    if (experiment_.scores_task()) {
        task_evaluator_.plan(arena, eval_tokens, documents, rank_, ranks_);
        eval_size.lengths.insert(eval_size.lengths.end(), size.lengths.begin(), size.lengths.end());
    }
    model_.plan_evaluation(arena, *ops_, eval_size, documents);
    if (experiment_.probe.every > 0)
        probe_.plan(arena, experiment_.model, std::min(experiment_.probe_lengths().back(), longest));
}

void Trainer::describe() {
    const model::ParamTable& table = model_.params();
    std::map<std::string, int64_t> by_group;
    for (const model::Param& p : table.params()) by_group[model::name_of(p.group)] += p.count();
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
    const data::TaskKind task = experiment_.data.task.kind;
    if (!surroundings_.no_data.empty())
        console_.line(fmt::format("data: {} training tokens; not looked at: {}",
                                  human_count(static_cast<double>(tokens)), surroundings_.no_data));
    else
        console_.line(fmt::format(
            "data: {} training tokens ({} {}), {} validation tokens",
            human_count(static_cast<double>(tokens)),
            task == data::TaskKind::none
                ? fmt::format("{:.2f} epochs of", batch_plan_.epochs(static_cast<uint64_t>(tokens)))
                : fmt::format("samples of {}, text out of", data::name_of(task)),
            human_count(static_cast<double>(train_stream_.tokens())),
            human_count(static_cast<double>(val_stream_.tokens()))));
    console_.line(evaluation_plan());
    console_.line("memory plan (activations of training and validation share theirs):\n" + arena_.table() +
                  fmt::format("  {:<24}{:>12}", "kernel scratch", human_bytes(ops_->scratch_bytes())));
}

const Stage& Trainer::stage_of(int64_t step) const {
    for (const Stage& s : stages_)
        if (step < s.first_step + s.steps) return s;
    return stages_.back();
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
        saved_step_ = state_.step;
        console_.line(fmt::format("resuming after step {}", state_.step));
    }
    weights_.round(*ops_);
    state_.data_fingerprint = train_stream_.fingerprint();
}

void Trainer::start_from_files() {
    const ranks::Team::Busy busy(*team_, "loading a checkpoint");
    if (auto loaded = directory_->load_newest(*ops_, model_.params(), weights_, total_steps_,
                                              state_exchange().tensors(), console_)) {
        resumed_ = true;
        state_ = loaded->state;
        optimizer_file_ = loaded->optimizer;
        const std::optional<Validated> validated = read_validated(directory_->path());
        if (state_.pending && validated && validated->step == state_.step) {
            done_ = validated->done;
            resumed_bytes_ = validated->file_bytes;
        } else if (validated && validated->step > state_.step) {
            io::remove_file(directory_->file("validated.json"));  // of steps that come again
        }
        if (ranks_ == 1 && !optimizer_file_.empty()) {
            StateExchange moments = state_exchange();
            load_optimizer(optimizer_file_, moments);
        }
        return;
    }
    for (const char* name : {"validated.json", "validation.partial"}) io::remove_file(directory_->file(name));
    std::vector<float> host;
    model::initialise(model_.params(), experiment_.init_seed(), host);
    ops_->upload(weights_.flat, host.data());
    if (experiment_.run.init_from.empty()) return;
    const io::Notice notice = [&](const std::string& text) { console_.line(text); };
    const io::Checkpoint source = find_checkpoint(experiment_.run.init_from, notice);
    load_weights(source, *ops_, model_.params(), weights_, {.partial = true}, notice);
    console_.line("starting from the weights of " + source.path);
}

std::string Trainer::newest_checkpoint_before(int64_t step) const {
    const std::string root = directory_->file("checkpoints");
    for (const int64_t saved : io::checkpoint_steps(root))
        if (saved < step) return "go back to " + io::join_path(root, io::checkpoint_name(saved));
    return "there is no earlier checkpoint to go back to";
}

bool Trainer::save() {
    traffic_.settle();
    const Clock::time_point begin = Clock::now();
    StateExchange moments = state_exchange();
    const bool weights_only = state_.step == total_steps_ && !experiment_.checkpoint.keep_optimizer;
    // What all ranks then know: "saved", "postponed", or what is not finite.
    std::string end = "saved";
    if (!speaks()) {
        if (!weights_only) moments.fetch_rest();
        end = share_text("");
    } else {
        directory_->check_in_place();
        for (const Record& r : records()) r.file->sync();
        const CheckpointParts parts{*ops_, model_.params(), weights_, moments};
        const ranks::Team::Busy busy(*team_, "saving a checkpoint");
        try {
            if (weights_only)
                directory_->save_weights_only(parts, state_, console_);
            else
                directory_->save(parts, state_, experiment_.checkpoint.keep, console_);
            failed_saves_ = 0;
        } catch (const Error& e) {
            directory_->check_in_place();  // whatever failed, a lost directory is the reason to give
            // A full disk in the middle of a long run must not end the run:
            // the previous checkpoint is intact.
            constexpr int tolerated = 3;
            const bool needed = state_.step == total_steps_ || stop_signal() != 0;
            const bool finite = e.code() != ExitCode::numerics;
            if (finite && (e.code() != ExitCode::disk || needed || ++failed_saves_ >= tolerated)) throw;
            if (!weights_only) moments.fetch_rest();
            end = finite ? "postponed" : "not finite";
            console_.line(finite ? fmt::format("warning: no checkpoint at step {}: {}", state_.step, e.what())
                                 : fmt::format("no checkpoint at step {}: {}; {}", state_.step, e.what(),
                                               newest_checkpoint_before(state_.step)));
        }
        directory_->check_names();
        share_text(end);
    }
    saving_seconds_ += seconds_since(begin);
    ++saves_;
    if (end == "saved") saved_step_ = state_.step;
    return end != "not finite";
}

ExitCode Trainer::stop() {
    if (state_.step > 0 && saved_step_ != state_.step && !save()) return ExitCode::numerics;
    console_.line(fmt::format("stopped by {} after step {}; the same command resumes",
                              strsignal(stop_signal()), state_.step));
    return ExitCode::stopped;
}

// The checkpoint comes first: a signal must not wait for an evaluation, which may take longer than whoever
// sent it is willing to wait.
ExitCode Trainer::finish_step() {
    note_lengths();
    done_.clear();
    state_.pending = !experiment_.parts_after(state_.step).empty();
    const bool last = state_.step == total_steps_, stopping = stop_signal() != 0;
    const int64_t save_every = experiment_.checkpoint.every;
    const bool due = last || stopping || (save_every > 0 && state_.step % save_every == 0);
    if (due && !save()) return ExitCode::numerics;
    if (stopping) return stop();
    const ExitCode code = evaluate();
    if (code != ExitCode::ok || last || stop_signal() == 0) return code;
    return stop();
}

ExitCode Trainer::advance() {
    const Clock::time_point begin = Clock::now();
    const StepOutcome outcome = train_step();
    busy_seconds_ += seconds_since(begin);
    if (outcome.refused) return ExitCode::numerics;
    team_->set_step(state_.step);
    record_step(outcome, state_.step == total_steps_);
    compare_memory();
    if (state_.bad_in_a_row <= experiment_.optimizer.max_bad_steps) return finish_step();
    console_.line(
        fmt::format("giving up: {} steps in a row had a non-finite loss or gradient", state_.bad_in_a_row));
    return ExitCode::numerics;
}

ExitCode Trainer::run(RunDirectory* directory, ranks::Comm& comm, ranks::Team& team) {
    check((directory != nullptr) == (rank_ == 0), "rank {} and the run directory", rank_);
    directory_ = directory;
    comm_ = &comm;
    team_ = &team;
    // Until there is something to save, a signal may end the process at once. Of several ranks
    // none may go alone.
    std::optional<StopSignals> signals;
    if (ranks_ > 1) signals.emplace();
    if (speaks()) console_.line("run: " + directory_->path());
    allocate();
    traffic_.connect(*ops_, comm, weights_, tree_);
    start();
    if (state_.step >= total_steps_ && parts_left().empty()) {
        console_.line(fmt::format("nothing to do: all {} steps are done", total_steps_));
        return ExitCode::ok;
    }
    if (speaks()) open_records();
    requested_step_ = state_.step;
    started_ = Clock::now();
    if (!signals) signals.emplace();
    ExitCode code = ExitCode::ok;
    if (state_.step == 0 && experiment_.checkpoint.at_start) {
        note_lengths();
        code = save() ? ExitCode::ok : ExitCode::numerics;
    } else if (state_.pending) {
        code = evaluate();
    }
    while (code == ExitCode::ok && state_.step < total_steps_) code = advance();
    if (code == ExitCode::ok) events_.end(io::SessionEnd::success);
    if (code == ExitCode::numerics) events_.end(io::SessionEnd::failure);
    ops_->synchronize();  // before the communicator goes
    return code;
}

}  // namespace longreach::train
