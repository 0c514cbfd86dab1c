#include "train/saver.h"

#include "data/tokenizer_file.h"
#include "train/validated.h"

namespace longreach::train {

void Saver::start() {
    if (session_.writes()) start_from_files();
    if (session_.ranks > 1) share_start();
    if (resumed_) {
        check_resumed();
        saved_step_ = session_.state.step;
        session_.console.line(fmt::format("resuming after step {}", session_.state.step));
    }
    stepper_.start();
    session_.weights.round(session_.ops);
    session_.state.data = DataIdentity::of(session_.train_stream, session_.val_sets);
    if (session_.writes()) keep_tokenizer();
}

// The tokenizer in the directory of the first training shard is copied to the run, so that its texts can be read later.
void Saver::keep_tokenizer() const {
    const uint64_t wanted = session_.state.data.tokenizer;
    if (wanted == 0 || session_.train_stream.shard_count() == 0) return;
    const std::string from = io::parent_path(session_.train_stream.shard(0).info().path);
    const auto holds = [&](const char* name) {
        return io::kind_of(io::join_path(from, name), io::Links::follow) == io::PathKind::file;
    };
    if (!holds("tokenizer.json") && !holds("vocab.json")) return;
    try {
        if (data::load_tokenizer(from)->fingerprint() == wanted)
            data::keep_tokenizer(from, session_.directory->path());
    } catch (const Error& error) {
        if (error.code() == ExitCode::internal || error.code() == ExitCode::disk) throw;
        session_.console.warn(fmt::format("the tokenizer in {} cannot be read: {}", from, error.what()));
    }
}

void Saver::open_records() {
    if (session_.writes()) recorder_.open(later_lengths_);
}

void Saver::check_resumed() const {
    const TrainState& state = session_.state;
    const std::string changed =
        changed_data(state.data, DataIdentity::of(session_.train_stream, session_.val_sets));
    if (!changed.empty())
        throw Error(
            ExitCode::data,
            fmt::format("{} changed since step {}: a resumed run would mix two texts", changed, state.step),
            "restore the files, give the run another run.name, or start it over with --fresh");
    if (state.step == 0 || state.step >= session_.schedule.steps()) return;
    const int64_t planned = session_.schedule.stage_of(state.step - 1).tokens_before(state.step);
    require(planned == state.tokens, ExitCode::usage,
            "{} tokens were consumed in the {} steps done; the stages of this config would have consumed {}",
            state.tokens, state.step, planned);
}

bool Saver::resume() {
    RunDirectory& directory = *session_.directory;
    auto loaded = directory.load_newest(session_.ops, session_.model.params(), session_.weights,
                                        session_.schedule.steps(), stepper_.state_exchange().tensors(),
                                        session_.console);
    if (!loaded) return false;
    resumed_ = true;
    session_.state = loaded->state;
    optimizer_file_ = loaded->optimizer;
    const std::optional<Validated> validated = read_validated(directory.path());
    if (session_.state.pending && validated && validated->step == session_.state.step) {
        validator_.set_done(validated->done);
        later_lengths_ = validated->file_bytes;
    } else if (validated && validated->step > session_.state.step) {
        io::remove_file(directory.file(validated_file));  // of steps that will be repeated
    }
    if (session_.ranks == 1 && !optimizer_file_.empty()) {
        StateExchange moments = stepper_.state_exchange();
        load_optimizer(optimizer_file_, moments);
    }
    return true;
}

void Saver::start_from_files() {
    const ranks::Team::Busy busy(*session_.team, "loading a checkpoint");
    if (resume()) return;
    for (const char* name : {validated_file, partial_file}) io::remove_file(session_.directory->file(name));
    const model::ParamTable& table = session_.model.params();
    std::vector<float> host;
    model::initialise(table, session_.experiment.init_seed(), host);
    session_.ops.upload(session_.weights.flat, host.data());
    if (session_.experiment.run.init_from.empty()) return;
    const io::Notice notice = [&](const std::string& text) { session_.console.line(text); };
    const io::Checkpoint source = session_.initial_checkpoint(notice);
    load_weights(source, session_.ops, table, session_.weights, {.partial = true}, notice);
    session_.console.line("starting from the weights of " + source.path);
}

void Saver::share_start() {
    json::Value message = json::Value::object();
    json::Value done = json::Value::array();
    for (const std::string& name : validator_.done()) done.push(name);
    message.set("resumed", resumed_)
        .set("moments", !optimizer_file_.empty())
        .set("done", done)
        .set("state", session_.state.to_json());
    const json::Value shared = json::parse(agreement_.text(json::write(message, json::Style::compact)),
                                           "rank 0's message", {.code = ExitCode::peer});
    std::vector<std::string> names;
    for (const json::Value& name : shared.find("done")->as_array()) names.push_back(name.as_string());
    validator_.set_done(names);
    resumed_ = shared.find("resumed")->to_bool().value_or(false);
    const bool moments = shared.find("moments")->to_bool().value_or(false);
    session_.state = TrainState::from_json(*shared.find("state"));

    const Tensor& weights = session_.weights.flat;
    std::vector<ranks::Transfer> sends, receives;
    if (session_.rank > 0) receives.push_back({0, weights});
    for (int r = 1; session_.rank == 0 && r < session_.ranks; ++r) sends.push_back({r, weights});
    ranks::Comm& comm = *session_.comm;
    comm.wait(comm.exchange({ranks::CollectiveOp::broadcast, DType::f32, weights.count()}, sends, receives));
    if (!moments) return;
    StateExchange state = stepper_.state_exchange();
    if (session_.writes()) return load_optimizer(optimizer_file_, state);
    for (size_t i = 0; i < state.tensors().size(); ++i) state.deliver(nullptr);
}

std::string Saver::write(StateExchange& moments, bool weights_only) {
    RunDirectory& directory = *session_.directory;
    const TrainState& state = session_.state;
    directory.check_in_place();
    recorder_.sync();
    const CheckpointParts parts{session_.ops, session_.model.params(), session_.weights, moments};
    const ranks::Team::Busy busy(*session_.team, "saving a checkpoint");
    std::string end = "saved";
    try {
        if (weights_only)
            directory.save_weights_only(parts, state, session_.console);
        else
            directory.save(parts, state, session_.experiment.checkpoint.keep, session_.console);
        failed_saves_ = 0;
    } catch (const Error& e) {
        directory.check_in_place();  // if the directory is lost, that is the error to report
        // A full disk must not end a long run at once: the previous checkpoint is intact.
        constexpr int tolerated = 3;
        const bool needed = session_.schedule.last(state.step) || agreement_.stop_signal() != 0;
        const bool finite = e.code() != ExitCode::numerics;
        if (finite && (e.code() != ExitCode::disk || needed || ++failed_saves_ >= tolerated)) throw;
        if (!weights_only) moments.fetch_rest();
        end = finite ? "postponed" : "not finite";
        const std::string text = fmt::format("no checkpoint at step {}: {}", state.step, e.what());
        if (finite)
            session_.console.warn(text);
        else
            session_.console.end_line(text + "; " + session_.earlier_checkpoint(state.step));
    }
    directory.check_names();
    return end;
}

bool Saver::save() {
    stepper_.settle();
    const Stopwatch watch;
    StateExchange moments = stepper_.state_exchange();
    const bool weights_only =
        session_.schedule.last(session_.state.step) && !session_.experiment.checkpoint.keep_optimizer;
    if (!session_.writes() && !weights_only) moments.fetch_rest();
    const std::string own = session_.writes() ? write(moments, weights_only) : "";
    const std::string end = agreement_.text(own);
    session_.spent.saving += watch.seconds();
    ++session_.spent.saves;
    if (end == "saved") saved_step_ = session_.state.step;
    return end != "not finite";
}

}  // namespace longreach::train
