#include "measure/key_tokens.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "base/hash.h"
#include "base/text.h"
#include "base/units.h"
#include "io/safetensors.h"

namespace longreach::measure {

namespace {

constexpr std::string_view loss_prefix = "loss.";

// The length in the name of a tensor of token losses; 0 for any other name.
int64_t length_in(std::string_view name) {
    if (!name.starts_with(loss_prefix)) return 0;
    name.remove_prefix(loss_prefix.size());
    int64_t length = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), length);
    return error == std::errc() && end == name.data() + name.size() ? length : 0;
}

std::vector<float> losses_in(const io::SafetensorsFile& file, int64_t length,
                             std::span<const int32_t> documents, const std::string& path) {
    const size_t slots = documents.size();
    const std::string name = fmt::format("{}{}", loss_prefix, length);
    const io::StoredTensor* tensor = file.find(name);
    check(tensor != nullptr, "a tensor that is listed is not found");
    require(tensor->type == io::StoredType::f32 && tensor->bytes() == slots * sizeof(float), ExitCode::data,
            "{}: {} is not a list of {} losses in F32", shown(path), name,
            grouped(static_cast<int64_t>(slots)));
    std::vector<float> losses(slots);
    file.read(*tensor, losses.data(), tensor->bytes());
    for (size_t i = 0; i < slots; ++i)
        if (documents[i] >= 0 && !std::isfinite(losses[i]))
            fail(ExitCode::data, "{}: entry {} of {} is {}; the loss of a scored token is a finite number",
                 shown(path), i, name, losses[i]);
    return losses;
}

}  // namespace

JudgeLosses judge_of(const std::vector<eval::LengthResult>& results) {
    const auto [first, last] = std::minmax_element(
        results.begin(), results.end(),
        [](const eval::LengthResult& a, const eval::LengthResult& b) { return a.length < b.length; });
    check(first->length < last->length && !last->token_losses.empty(), "token losses of two lengths");
    return {first->length, last->length, first->token_losses, last->token_losses};
}

JudgeLosses read_judge(const std::string& path, const eval::ScoredTokens& scored,
                       std::span<const int32_t> documents) {
    const io::SafetensorsFile file = io::SafetensorsFile::open(path);
    const auto found = file.metadata().find("fingerprint");
    require(found != file.metadata().end(), ExitCode::data,
            "{}: no fingerprint says which tokens it has the losses of; --token-losses writes one",
            shown(path));
    require(found->second == format_hash64(scored.fingerprint), ExitCode::data,
            "{}: it has the losses of other tokens (fingerprint {}) than are scored here ({}); the same "
            "data, largest length, eval.pick, eval.align and --tokens score the same ones",
            shown(path), shown(found->second), format_hash64(scored.fingerprint));
    JudgeLosses judge;
    for (const io::StoredTensor& t : file.tensors())
        if (const int64_t length = length_in(t.name); length > 0) {
            if (judge.short_length == 0 || length < judge.short_length) judge.short_length = length;
            judge.long_length = std::max(judge.long_length, length);
        }
    require(judge.short_length < judge.long_length, ExitCode::data,
            "{}: it has the losses of one length; what a longer context helps with takes two", shown(path));
    judge.at_short = losses_in(file, judge.short_length, documents, path);
    judge.at_long = losses_in(file, judge.long_length, documents, path);
    if (const auto name = file.metadata().find("run"); name != file.metadata().end())
        judge.name = name->second;
    return judge;
}

std::vector<TokenPart> parts_of(const JudgeLosses& judge, const KeyTokenRule& rule) {
    check(judge.at_short.size() == judge.at_long.size(), "losses of the same tokens");
    std::vector<TokenPart> parts;
    for (size_t i = 0; i < judge.at_long.size(); ++i) {
        const double near = judge.at_short[i], far = judge.at_long[i];
        parts.push_back(std::isnan(near) || std::isnan(far)           ? TokenPart::unscored
                        : near - far >= rule.gain && far <= rule.loss ? TokenPart::key
                                                                      : TokenPart::other);
    }
    return parts;
}

uint64_t fingerprint_of(const std::vector<TokenPart>& parts) {
    Xxh64 hash;
    hash.update(parts.data(), parts.size() * sizeof parts[0]);
    return hash.digest();
}

std::vector<KeyTokenRow> split_losses(const std::vector<eval::LengthResult>& results,
                                      const KeyTokenSplit& split, int64_t step) {
    std::vector<KeyTokenRow> rows;
    const std::string fingerprint = format_hash64(fingerprint_of(split.parts));
    for (const eval::LengthResult& r : results)
        for (const auto& [part, name] : {std::pair{TokenPart::key, "key"}, {TokenPart::other, "other"}}) {
            check(r.token_losses.size() == split.parts.size() &&
                      r.token_losses.size() == split.documents.size(),
                  "parts and documents of the scored tokens");
            eval::LossSum all;
            std::map<int32_t, eval::DocumentSums> documents;
            for (size_t i = 0; i < r.token_losses.size(); ++i) {
                const double loss = r.token_losses[i];
                if (split.parts[i] != part || std::isnan(loss)) continue;
                all.add(loss);
                documents[split.documents[i]].loss.add(loss);
            }
            KeyTokenRow row{.step = step, .length = r.length, .part = name};
            row.scored = static_cast<double>(all.count);
            if (all.count > 0) row.loss = all.mean();
            std::vector<eval::DocumentSums> sums;
            for (const auto& [document, sum] : documents) sums.push_back(sum);
            if (r.documents > 0) row.standard_error = eval::bootstrap_errors(sums, split.seed).loss;
            row.from = split.judge.short_length;
            row.to = split.judge.long_length;
            row.judge = split.by_file ? "file" : "self";
            row.fingerprint = format_hash64(r.fingerprint);
            row.judge_name = split.judge.name;
            row.parts = fingerprint;
            rows.push_back(row);
        }
    return rows;
}

std::string key_tokens_table(const std::vector<KeyTokenRow>& rows, const KeyTokenRule& rule) {
    if (rows.empty()) return "";
    const KeyTokenRow &key = rows[0], &other = rows[1];
    const double share = 100 * key.scored / std::max(1.0, key.scored + other.scored);
    std::string out = fmt::format(
        "key tokens: {} of {} ({:.2f}%), whose loss {} falls from {} to {} tokens by {} or more, to {} or "
        "less\n",
        grouped(static_cast<int64_t>(key.scored)), grouped(static_cast<int64_t>(key.scored + other.scored)),
        share, key.judge == "file" ? "by the judge" : "by this model", key.from, key.to, rule.gain,
        rule.loss);
    out += fmt::format("{:>9} {:>9} {:>9} {:>9} {:>9}\n", "length", "key", "std.err", "others", "std.err");
    const auto number = [](double x) { return std::isnan(x) ? std::string("-") : fmt::format("{:.4f}", x); };
    for (size_t i = 0; i + 1 < rows.size(); i += 2)
        out += fmt::format("{:>9} {:>9} {:>9} {:>9} {:>9}\n", rows[i].length, number(rows[i].loss),
                           number(rows[i].standard_error), number(rows[i + 1].loss),
                           number(rows[i + 1].standard_error));
    return out;
}

}  // namespace longreach::measure
