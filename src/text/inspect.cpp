#include "text/inspect.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "data/shard_set.h"
#include "tokenizer/byte_text.h"

namespace longreach::text {

namespace {

DocumentStatistics scan_documents(const data::TokenStream& stream, uint64_t limit) {
    DocumentStatistics statistics;
    statistics.known = stream.knows_documents();
    if (!statistics.known) return statistics;
    statistics.scanned = std::min(limit, stream.tokens());
    const uint64_t part = std::min<uint64_t>(1 << 16, statistics.scanned + 1);
    std::vector<int32_t> tokens(part), starts(part);
    std::vector<uint64_t> lengths;
    uint64_t begun = 0;  // where the current document begins
    for (uint64_t at = 0; at < statistics.scanned;) {
        // One token is read twice, so that a document that begins right after a marker is found.
        const uint64_t overlap = at > 0 ? 1 : 0;
        const int64_t count =
            static_cast<int64_t>(std::min(part - overlap, statistics.scanned - at) + overlap);
        const uint64_t from = at - overlap;
        stream.read(from, count, tokens.data());
        stream.document_starts(from, count, tokens.data(), starts.data());
        for (int64_t i = static_cast<int64_t>(overlap); i < count; ++i) {
            const uint64_t position = from + static_cast<uint64_t>(i);
            if (starts[static_cast<size_t>(i)] != i || position == begun) continue;
            lengths.push_back(position - begun);
            begun = position;
        }
        at = from + static_cast<uint64_t>(count);
    }
    if (statistics.scanned > begun) lengths.push_back(statistics.scanned - begun);
    statistics.documents = lengths.size();
    if (lengths.empty()) return statistics;
    std::sort(lengths.begin(), lengths.end());
    statistics.mean = static_cast<double>(statistics.scanned) / static_cast<double>(lengths.size());
    for (size_t i = 0; i < quantile_levels.size(); ++i) {
        const double rank = quantile_levels[i] * static_cast<double>(lengths.size() - 1);
        statistics.quantiles[i] = lengths[static_cast<size_t>(rank + 0.5)];
    }
    return statistics;
}

std::string boundary_text(const data::ShardInfo& info) {
    if (info.boundary_token < 0) return info.has_documents ? "table" : "unknown";
    return fmt::format("token {} {}", info.boundary_token,
                       info.side == data::BoundarySide::before ? "before" : "after");
}

}  // namespace

Inspection inspect(const std::vector<std::string>& paths, const InspectOptions& options) {
    const data::TokenStream stream = data::TokenStream::open(paths, options.stream);
    Inspection inspection;
    inspection.tokens = stream.tokens();
    inspection.source_bytes = stream.source_bytes();
    inspection.fingerprint = stream.fingerprint();
    for (size_t s = 0; s < stream.shard_count(); ++s) {
        ShardSummary summary{stream.shard(s).info(), {}};
        summary.first_tokens.resize(
            static_cast<size_t>(std::min<uint64_t>(options.first_tokens, summary.info.tokens)));
        stream.read(stream.shard_begin(s), static_cast<int64_t>(summary.first_tokens.size()),
                    summary.first_tokens.data());
        inspection.shards.push_back(std::move(summary));
    }
    inspection.documents = scan_documents(stream, options.scan_tokens);
    return inspection;
}

std::string render_tokens(const data::ShardInfo& info, const std::vector<int32_t>& tokens) {
    std::string text;
    const bool bytes = info.tokenizer == tokenizer::bytes_fingerprint();
    for (const int32_t token : tokens) {
        if (!bytes) {
            text += fmt::format("{}{}", text.empty() ? "" : " ", token);
        } else if (token == tokenizer::byte_boundary) {
            text += "<|document|>";
        } else if (token == '\n') {
            text += "\\n";
        } else if (token == '\t') {
            text += "\\t";
        } else if (token == '\\') {
            text += "\\\\";
        } else if (token >= 0x20 && token < 0x7f) {
            text += static_cast<char>(token);
        } else {
            text += fmt::format("\\x{:02x}", token);
        }
    }
    return text;
}

std::string to_text(const Inspection& inspection) {
    std::string text;
    for (const ShardSummary& shard : inspection.shards) {
        const data::ShardInfo& info = shard.info;
        text += fmt::format("{}\n  {}, {} bytes per token, {} tokens, vocabulary {}, documents by {}\n",
                            info.path, data::name_of(info.format), info.type.bytes, info.tokens,
                            info.vocab > 0 ? std::to_string(info.vocab) : "unknown", boundary_text(info));
        text += fmt::format("  fingerprint {}", format_hash64(info.fingerprint));
        if (info.tokenizer != 0) text += fmt::format(", tokenizer {}", format_hash64(info.tokenizer));
        if (info.source_bytes > 0) text += fmt::format(", {} bytes of text", info.source_bytes);
        text += fmt::format("\n  begins: {}\n", render_tokens(info, shard.first_tokens));
    }
    text += fmt::format("{} tokens in {} shards, fingerprint {}\n", inspection.tokens,
                        inspection.shards.size(), format_hash64(inspection.fingerprint));
    if (inspection.source_bytes > 0)
        text += fmt::format("{:.4f} bytes of text per token\n", static_cast<double>(inspection.source_bytes) /
                                                                    static_cast<double>(inspection.tokens));
    const DocumentStatistics& d = inspection.documents;
    if (!d.known) return text + "documents: unknown (set data.boundary.token)\n";
    text += fmt::format(
        "documents: {}{}, mean length {:.1f}\n", d.documents,
        d.scanned < inspection.tokens ? fmt::format(" in the first {} tokens", d.scanned) : "", d.mean);
    text += "  length in tokens:";
    for (size_t i = 0; i < quantile_levels.size(); ++i)
        text += fmt::format("  {:.0f}% {}", 100 * quantile_levels[i], d.quantiles[i]);
    return text + "\n";
}

}  // namespace longreach::text
