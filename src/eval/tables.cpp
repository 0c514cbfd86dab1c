#include "eval/tables.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/hash.h"
#include "base/units.h"
#include "io/safetensors.h"

namespace longreach::eval {

namespace {

double bits_per_byte(double loss, double bytes_per_token) {
    return loss / std::numbers::ln2 / bytes_per_token;
}

}  // namespace

std::vector<std::string> val_lines(const std::vector<LengthResult>& results, int64_t step, int64_t tokens,
                                   double bytes_per_token) {
    std::vector<std::string> lines;
    for (const LengthResult& r : results) {
        LossRow row{.step = step, .tokens = tokens, .length = r.length, .loss = r.loss.mean()};
        row.standard_error = r.standard_error;
        row.scored = static_cast<double>(r.loss.count);
        if (r.documents > 0) row.documents = static_cast<double>(r.documents);
        if (bytes_per_token > 0) row.bits_per_byte = bits_per_byte(row.loss, bytes_per_token);
        row.top1 = r.top1();
        row.top1_error = r.top1_error;
        row.fingerprint = format_hash64(r.fingerprint);
        lines.push_back(val_file.line(row));
    }
    return lines;
}

std::vector<std::string> positions_lines(const std::vector<LengthResult>& results, int64_t step) {
    std::vector<std::string> lines;
    for (const LengthResult& r : results)
        for (const auto& [by, buckets] :
             {std::pair{"sequence", &r.by_sequence}, {"document", &r.by_document}})
            for (size_t k = 0; k < buckets->size(); ++k)
                if (const LossSum& sum = (*buckets)[k]; sum.count > 0)
                    lines.push_back(
                        positions_file.line({step, r.length, by, int64_t{1} << k, sum.mean(),
                                             static_cast<double>(sum.count), format_hash64(r.fingerprint)}));
    return lines;
}

std::string scored_line(const ScoredTokens& t) {
    const bool head = t.pick == EvalPick::head, all = static_cast<uint64_t>(t.windows) == t.choices;
    const std::string each = grouped(t.window_tokens), windows = grouped(t.windows);
    const auto plural = [](int64_t n) { return n == 1 ? "" : "s"; };
    std::string text = "scored: ";
    if (t.align == EvalAlign::suffix) {
        text += fmt::format("the last {} tokens of {}{} document{}", each, all ? "all " : "", windows,
                            plural(t.windows));
        if (!all)
            text += fmt::format("{}{} that qualify", head ? ", the first of " : " spread over ",
                                grouped(static_cast<int64_t>(t.choices)));
    } else {
        text += fmt::format("{}{} window{} of {} tokens",
                            all    ? "all "
                            : head ? "the first "
                                   : "",
                            windows, plural(t.windows), each);
        if (!all)
            text += fmt::format("{}{}", head ? " of " : " spread over ",
                                grouped(static_cast<int64_t>(t.choices) * t.window_tokens));
        if (t.min_document > 0)
            text += fmt::format(", {} of them in documents of at least {}", grouped(t.tokens),
                                grouped(t.min_document));
    }
    text += t.documents > 0 ? fmt::format("; {} document{}", grouped(t.documents), plural(t.documents))
                            : "; documents unknown";
    return text + "; fingerprint " + format_hash64(t.fingerprint);
}

std::string results_table(const std::vector<LengthResult>& results, double bytes_per_token) {
    const auto error = [](double x) { return std::isnan(x) ? std::string("-") : fmt::format("{:.4f}", x); };
    std::string out = fmt::format("{:>8} {:>9} {:>9}{} {:>7} {:>9} {:>12} {:>9}\n", "length", "loss",
                                  "std.err", bytes_per_token > 0 ? fmt::format(" {:>10}", "bits/byte") : "",
                                  "top1", "std.err", "tokens", "documents");
    for (const LengthResult& r : results)
        out += fmt::format("{:>8} {:>9.4f} {:>9}{} {:>7.4f} {:>9} {:>12} {:>9}\n", r.length, r.loss.mean(),
                           error(r.standard_error),
                           bytes_per_token > 0
                               ? fmt::format(" {:>10.4f}", bits_per_byte(r.loss.mean(), bytes_per_token))
                               : "",
                           r.top1(), error(r.top1_error), r.loss.count,
                           r.documents > 0 ? fmt::format("{}", r.documents) : "-");
    return out;
}

std::string buckets_table(const std::vector<LengthResult>& results, bool by_document) {
    const auto buckets = [&](const LengthResult& r) { return by_document ? r.by_document : r.by_sequence; };
    size_t rows = 0;
    std::string out = fmt::format("{:>15}", by_document ? "in document" : "in sequence");
    for (const LengthResult& r : results) {
        out += fmt::format(" {:>9}", r.length);
        rows = std::max(rows, buckets(r).size());
    }
    out += '\n';
    for (size_t k = 0; k < rows; ++k) {
        out += fmt::format("{:>15}", fmt::format("{}-{}", int64_t{1} << k, (int64_t{2} << k) - 1));
        for (const LengthResult& r : results) {
            const std::vector<LossSum> b = buckets(r);
            out += k < b.size() && b[k].count > 0 ? fmt::format(" {:>9.4f}", b[k].mean())
                                                  : fmt::format(" {:>9}", "");
        }
        out += '\n';
    }
    return out;
}

bool is_token_losses(const std::string& path) {
    try {
        const io::SafetensorsFile file = io::SafetensorsFile::open(path, io::Links::follow);
        const auto named = [](const io::StoredTensor& t) { return t.name.starts_with("loss."); };
        return file.metadata().count("fingerprint") > 0 && file.metadata().count("run") > 0 &&
               std::all_of(file.tensors().begin(), file.tensors().end(), named);
    } catch (const Error& error) {
        if (error.code() == ExitCode::disk) throw;
        return false;
    }
}

void write_token_losses(const std::string& path, const std::vector<LengthResult>& results,
                        const std::string& run) {
    std::vector<io::StoredTensor> tensors;
    for (const LengthResult& r : results) {
        io::StoredTensor t;
        t.name = fmt::format("loss.{}", r.length);
        t.shape = {static_cast<int64_t>(r.token_losses.size())};
        tensors.push_back(t);
    }
    io::AtomicFile file(path);
    const io::Metadata metadata{{"fingerprint", format_hash64(results.front().fingerprint)}, {"run", run}};
    io::SafetensorsWriter(std::move(tensors), metadata)
        .write(file, [&](const io::StoredTensor& t, io::ByteSink& out) {
            for (const LengthResult& r : results)
                if (t.name == fmt::format("loss.{}", r.length))
                    out.write(r.token_losses.data(), r.token_losses.size() * sizeof(float));
        });
    file.commit();
}

}  // namespace longreach::eval
