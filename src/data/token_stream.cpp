#include "data/token_stream.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "data/unfinished.h"

namespace longreach::data {

namespace {

bool has_extension(std::string_view name, std::string_view extension) {
    return name.size() > extension.size() && name.substr(name.size() - extension.size()) == extension;
}

void refuse_unfinished(const std::string& directory) {
    if (io::kind_of(Unfinished::path_in(directory), io::Links::refuse) != io::PathKind::file) return;
    throw Error(ExitCode::data,
                fmt::format("{} holds unfinished shards: the call that writes them has not ended", directory),
                "repeat that call to complete them");
}

// The shards of a directory: *.bin and *.idx, but a .bin with an .idx of its name is read through the index.
void add_directory(const std::string& directory, std::vector<std::string>& shards) {
    refuse_unfinished(directory);
    const std::vector<std::string> names = io::list_directory(directory);
    const size_t before = shards.size();
    for (const std::string& name : names) {
        const bool is_bin = has_extension(name, ".bin");
        if (!is_bin && !has_extension(name, ".idx")) continue;
        const std::string index = name.substr(0, name.size() - 4) + ".idx";
        if (is_bin && std::binary_search(names.begin(), names.end(), index)) continue;
        shards.push_back(io::join_path(directory, name));
    }
    require(shards.size() > before, ExitCode::data, "directory {} holds no token shard (*.bin or *.idx)",
            directory);
}

}  // namespace

std::vector<std::string> find_shards(const std::vector<std::string>& paths) {
    std::vector<std::string> shards;
    for (const std::string& path : paths) {
        const io::PathKind kind = io::kind_of(path, io::Links::follow);
        if (kind == io::PathKind::directory) {
            add_directory(path, shards);
        } else if (kind == io::PathKind::missing && path.find_first_of("*?[") != std::string::npos) {
            const std::vector<std::string> found = io::expand_pattern(path);
            require(!found.empty(), ExitCode::data, "no file matches {}", path);
            shards.insert(shards.end(), found.begin(), found.end());
        } else {
            shards.push_back(path);
        }
    }
    for (const std::string& shard : shards) refuse_unfinished(io::parent_path(shard));
    std::set<std::string_view> seen;
    for (const std::string& shard : shards)
        require(seen.insert(shard).second, ExitCode::data, "shard {} is listed twice", shard);
    return shards;
}

TokenStream TokenStream::open_sources(const std::vector<std::vector<std::string>>& sources,
                                      const StreamOptions& options) {
    std::vector<std::string> shards;
    std::vector<size_t> ends;  // of each source, in shards
    for (const std::vector<std::string>& paths : sources) {
        require(!paths.empty(), ExitCode::data, "no token data is named");
        const std::vector<std::string> found = find_shards(paths);
        shards.insert(shards.end(), found.begin(), found.end());
        ends.push_back(shards.size());
    }
    TokenStream stream = open(shards, options);
    stream.sources_.clear();
    uint64_t begin = 0;
    for (const size_t end : ends) {
        stream.sources_.push_back({begin, stream.first_[end] - begin});
        begin = stream.first_[end];
    }
    return stream;
}

TokenStream TokenStream::open(const std::vector<std::string>& paths, const StreamOptions& options) {
    require(!paths.empty(), ExitCode::data, "no token data is named");
    TokenStream stream;
    for (const std::string& path : find_shards(paths))
        stream.shards_.push_back(Shard::open(path, options.shard));

    Xxh64 fingerprint;
    uint64_t checkable = 0;
    bool all_sources_known = true;
    stream.knows_documents_ = true;
    for (const Shard& shard : stream.shards_) {
        const ShardInfo& info = shard.info();
        require(options.vocab == 0 || info.vocab <= options.vocab, ExitCode::data,
                "{} has tokens of a vocabulary of {}, the model only {}", info.path, info.vocab,
                options.vocab);
        require(info.tokenizer == 0 || stream.tokenizer_ == 0 || info.tokenizer == stream.tokenizer_,
                ExitCode::data, "{} was made with another tokenizer ({}) than the shards before it ({})",
                info.path, format_hash64(info.tokenizer), format_hash64(stream.tokenizer_));
        if (info.tokenizer != 0) stream.tokenizer_ = info.tokenizer;
        const int64_t limit = info.vocab > 0 ? info.vocab : options.vocab;
        stream.limits_.push_back(limit > 0 ? limit : int64_t{1} << 31);
        stream.bound_ = std::max(stream.bound_, info.vocab);

        Rule rule;
        const bool chosen = options.boundary_token >= 0;
        const int64_t token = chosen ? options.boundary_token : info.boundary_token;
        const BoundarySide side = chosen ? options.side : info.side;
        if (token >= 0) {
            require(token < stream.limits_.back(), ExitCode::data,
                    "{}: boundary token {} is outside the vocabulary of {}", info.path, token,
                    stream.limits_.back());
            rule = {side == BoundarySide::before ? Rule::Kind::before : Rule::Kind::after,
                    static_cast<int32_t>(token), info.has_documents && !chosen};
        } else if (info.has_documents) {
            rule = {Rule::Kind::table, -1, true};
        } else {
            stream.knows_documents_ = false;
            if (options.need_documents)
                throw Error(ExitCode::usage,
                            fmt::format("{}: a {} shard does not say where documents begin", info.path,
                                        name_of(info.format)),
                            "set data.boundary.token, or data.document_mask = false");
        }
        stream.rules_.push_back(rule);
        require(info.tokens <= std::numeric_limits<int64_t>::max() - stream.first_.back(), ExitCode::data,
                "{}: more tokens than 63 bits can count", info.path);
        stream.first_.push_back(stream.first_.back() + info.tokens);
        fingerprint.update(&info.fingerprint, sizeof info.fingerprint);
        stream.source_bytes_ += info.source_bytes;
        all_sources_known = all_sources_known && info.source_bytes > 0;
        if (!info.block_checksums.empty()) checkable += info.token_bytes();
    }
    if (!all_sources_known) stream.source_bytes_ = 0;
    stream.fingerprint_ = fingerprint.digest();
    stream.sources_ = {{0, stream.tokens()}};

    if (checkable <= options.verify_limit)
        for (const Shard& shard : stream.shards_)
            for (size_t block = 0; block < shard.info().block_checksums.size(); ++block)
                require(shard.block_is_intact(block), ExitCode::data,
                        "{}: MiB {} of the token data does not match its checksum", shard.info().path, block);
    return stream;
}

// Appends the starts in [from, end), `from` itself only if a document begins there.
void TokenStream::find_documents(uint64_t from, uint64_t end, std::vector<uint64_t>& begins) const {
    constexpr uint64_t piece = 1 << 16;
    std::vector<int32_t> ids(piece + 1), starts(piece + 1);
    // Whether a document begins at a piece's first token shows only together with the token before it.
    for (uint64_t at = from; at < end; at += piece) {
        const uint64_t first = at > 0 ? at - 1 : 0;
        const int64_t count = static_cast<int64_t>(std::min(at + piece, end) - first);
        read(first, count, ids.data());
        document_starts(first, count, ids.data(), starts.data());
        for (int64_t i = static_cast<int64_t>(at - first); i < count; ++i)
            if (starts[static_cast<size_t>(i)] == i && (i > 0 || at == 0))
                begins.push_back(first + static_cast<uint64_t>(i));
    }
}

std::vector<uint64_t> TokenStream::document_begins() const {
    std::vector<uint64_t> begins;
    for (size_t s = 0; s < shards_.size(); ++s) {
        if (rules_[s].tabled) {
            for (const uint64_t document : shards_[s].info().documents)
                begins.push_back(first_[s] + document);
        } else {
            find_documents(first_[s], first_[s + 1], begins);
        }
    }
    if (begins.empty() || begins.front() > 0) begins.insert(begins.begin(), 0);
    return begins;
}

double TokenStream::bytes_per_token() const {
    return tokens() == 0 ? 0.0 : static_cast<double>(source_bytes_) / static_cast<double>(tokens());
}

size_t TokenStream::shard_of(uint64_t position) const {
    return static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), position) - first_.begin()) - 1;
}

void TokenStream::read(uint64_t begin, int64_t count, int32_t* out) const {
    check(count >= 0 && begin <= tokens() && static_cast<uint64_t>(count) <= tokens() - begin,
          "tokens {} + {} of a stream of {}", begin, count, tokens());
    uint64_t left = static_cast<uint64_t>(count);
    for (size_t s = left > 0 ? shard_of(begin) : 0; left > 0; ++s) {
        const uint64_t inside = begin - first_[s];
        const uint64_t part = std::min(left, shards_[s].info().tokens - inside);
        shards_[s].read(inside, part, out);
        // As unsigned, a negative token is a large one.
        uint32_t largest = 0;
        for (uint64_t i = 0; i < part; ++i) largest = std::max(largest, static_cast<uint32_t>(out[i]));
        if (part > 0 && largest >= limits_[s]) {
            uint64_t i = 0;
            while (static_cast<uint32_t>(out[i]) < limits_[s]) ++i;
            fail_token(s, inside + i);
        }
        begin += part;
        out += part;
        left -= part;
    }
}

void TokenStream::fail_token(size_t shard, uint64_t position) const {
    const ShardInfo& info = shards_[shard].info();
    throw Error(ExitCode::data,
                fmt::format("{}: token {} at position {} is outside the vocabulary of {}", info.path,
                            shards_[shard].stored_value(position), position, limits_[shard]),
                "the data were made with another tokenizer, are of another width, or are damaged");
}

void TokenStream::document_starts(uint64_t begin, int64_t count, const int32_t* tokens,
                                  int32_t* doc_start) const {
    check(knows_documents_, "the documents of this stream are unknown");
    check(count >= 0 && count <= std::numeric_limits<int32_t>::max() && begin <= this->tokens() &&
              static_cast<uint64_t>(count) <= this->tokens() - begin,
          "documents of tokens {} + {} of a stream of {}", begin, count, this->tokens());
    int32_t current = 0, i = 0;
    bool starts = false;  // the token before was a marker that ends its document
    while (i < count) {
        const size_t s = shard_of(begin + static_cast<uint64_t>(i));
        const Rule rule = rules_[s];
        const int32_t end =
            i + static_cast<int32_t>(std::min<uint64_t>(static_cast<uint64_t>(count - i),
                                                        first_[s + 1] - begin - static_cast<uint64_t>(i)));
        const std::vector<uint64_t>& table = shards_[s].info().documents;
        auto next =
            std::lower_bound(table.begin(), table.end(), begin + static_cast<uint64_t>(i) - first_[s]);
        for (; i < end; ++i) {
            if (rule.kind == Rule::Kind::before) {
                starts = starts || tokens[i] == rule.token;
            } else if (rule.kind == Rule::Kind::table && next != table.end() &&
                       *next + first_[s] == begin + static_cast<uint64_t>(i)) {
                starts = true;
                ++next;
            }
            if (starts) current = i;
            doc_start[i] = current;
            starts = rule.kind == Rule::Kind::after && tokens[i] == rule.token;
        }
    }
}

}  // namespace longreach::data
