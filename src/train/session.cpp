#include "train/session.h"

#include "base/hash.h"

namespace longreach::train {

namespace {

data::TokenStream open_train_stream(const Experiment& experiment, const Surroundings& surroundings) {
    if (!surroundings.no_data.empty()) return data::TokenStream::absent();
    return data::TokenStream::open_sources(experiment.data.sources(),
                                           experiment.data.stream_options(experiment.model.vocab_size));
}

}  // namespace

Session::Session(const Experiment& e, Console& c, Ops& o, int own_rank, int of_ranks, const Surroundings& s)
    : experiment(e),
      console(c),
      ops(o),
      rank(own_rank),
      ranks(of_ranks),
      surroundings(s),
      train_stream(open_train_stream(e, s)),
      val_sets(s.no_data.empty() ? open_validation_sets(e) : absent_validation_sets(e)),
      model(e.model, e.table_rows(), e.eval.rope),
      evaluations(evaluations_of(e)),
      schedule(e, model, val_sets, evaluations) {
    for (const ValidationSet& set : val_sets) {
        const uint64_t own = train_stream.tokenizer(), other = set.stream.tokenizer();
        require(own == 0 || other == 0 || own == other, ExitCode::data,
                "data.train and {} were made with different tokenizers, {} and {}", set.field(),
                format_hash64(own), format_hash64(other));
    }
}

std::vector<data::BlockTable> Session::blocks() const {
    if (surroundings.no_data.empty())
        return data::cut_sources(train_stream, experiment.data.blocks, experiment.block_tokens());
    return std::vector<data::BlockTable>(experiment.data.sources().size(), {{{0, 0}}, 1});
}

io::Checkpoint Session::initial_checkpoint(const io::Notice& notice) const {
    io::Checkpoint source = find_checkpoint(experiment.run.init_from, notice);
    const uint64_t theirs = tokenizer_of(source), own = train_stream.tokenizer();
    if (theirs != 0 && own != 0 && theirs != own && !experiment.run.init_other_tokenizer)
        throw Error(
            ExitCode::data,
            fmt::format("run.init_from: {} was trained on tokens of the tokenizer {}; the training data "
                        "is of {}",
                        source.path, format_hash64(theirs), format_hash64(own)),
            "run.init_other_tokenizer=true takes its weights all the same");
    return source;
}

std::string Session::earlier_checkpoint(int64_t step) const {
    const std::string root = directory->file("checkpoints");
    for (const int64_t saved : io::checkpoint_steps(root))
        if (saved < step) return "go back to " + io::join_path(root, io::checkpoint_name(saved));
    return "there is no earlier checkpoint to go back to";
}

}  // namespace longreach::train
