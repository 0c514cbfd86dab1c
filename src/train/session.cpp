#include "train/session.h"

#include "base/hash.h"

namespace longreach::train {

namespace {

using Sources = std::vector<std::vector<std::string>>;

data::TokenStream open_stream(const Experiment& experiment, const Sources& sources,
                              const Surroundings& surroundings) {
    if (!surroundings.no_data.empty()) return data::TokenStream::absent();
    return data::TokenStream::open_sources(sources,
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
      train_stream(open_stream(e, e.data.sources(), s)),
      val_stream(open_stream(e, {e.data.val}, s)),
      model(e.model, e.table_rows(), e.eval.rope),
      schedule(e, model, val_stream) {
    const uint64_t own = train_stream.tokenizer(), other = val_stream.tokenizer();
    require(own == 0 || other == 0 || own == other, ExitCode::data,
            "data.train and data.val were made with different tokenizers, {} and {}", format_hash64(own),
            format_hash64(other));
}

std::vector<data::BlockTable> Session::blocks() const {
    if (surroundings.no_data.empty())
        return data::cut_sources(train_stream, experiment.data.blocks, experiment.block_tokens());
    return std::vector<data::BlockTable>(experiment.data.sources().size(), {{{0, 0}}, 1});
}

std::string Session::earlier_checkpoint(int64_t step) const {
    const std::string root = directory->file("checkpoints");
    for (const int64_t saved : io::checkpoint_steps(root))
        if (saved < step) return "go back to " + io::join_path(root, io::checkpoint_name(saved));
    return "there is no earlier checkpoint to go back to";
}

}  // namespace longreach::train
