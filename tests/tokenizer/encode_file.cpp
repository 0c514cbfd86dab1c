// Encodes files with a tokenizer, for the comparison with other implementations (peers.py):
//
//   encode_file [--pattern P] [--specials] TOKENIZER [MERGES] -- TEXT IDS ...
//   encode_file --learn VOCAB TEXT OUT
//
// --learn writes the tokenizer.json of that many tokens. Each IDS receives the ids of TEXT as 4-byte integers. Refuses a text that its ids do not decode to, if the tokenizer is
// byte-level and does not normalise. Prints the bytes, tokens and seconds of each text.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "tokenizer/formats.h"
#include "tokenizer/learn.h"
#include "tokenizer/tokenizer.h"

using namespace longreach;
using namespace longreach::tokenizer;

namespace {

std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    require(in.good(), ExitCode::data, "cannot read {}", path);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Definition load(const std::vector<std::string>& files, const std::string& pattern) {
    const std::string content = read(files.at(0));
    if (files.size() > 1) return parse_vocab_and_merges(content, files[0], read(files[1]), files[1]);
    return content.starts_with("{") ? parse_tokenizer_json(content, files[0])
                                    : parse_rank_file(content, files[0], pattern);
}

void learn(int64_t vocab, const std::string& text, const std::string& out) {
    const auto begin = std::chrono::steady_clock::now();
    WordCounter counter;
    counter.add(read(text));
    const json::Value file = to_json(counter.learn({.vocab = vocab}));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::ofstream(out, std::ios::binary) << json::write(file, json::Style::pretty);
    fmt::print("{:.3f}\n", seconds.count());
}

void run(const std::vector<std::string>& arguments) {
    if (arguments.at(0) == "--learn")
        return learn(std::stoll(arguments.at(1)), arguments.at(2), arguments.at(3));
    std::vector<std::string> files;
    std::string pattern;
    SpecialTokens special = SpecialTokens::as_text;
    size_t at = 0;
    for (; at < arguments.size() && arguments[at] != "--"; ++at) {
        if (arguments[at] == "--pattern") {
            pattern = arguments.at(++at);
        } else if (arguments[at] == "--specials") {
            special = SpecialTokens::as_tokens;
        } else {
            files.push_back(arguments[at]);
        }
    }
    const auto tokenizer = std::make_shared<const Tokenizer>(load(files, pattern));
    Encoder encoder(tokenizer);
    for (++at; at + 1 < arguments.size(); at += 2) {
        const std::string text = read(arguments[at]);
        std::vector<int32_t> ids;
        const auto begin = std::chrono::steady_clock::now();
        encoder.encode(text, special, ids);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        std::ofstream(arguments[at + 1], std::ios::binary)
            .write(reinterpret_cast<const char*>(ids.data()),
                   static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
        const Definition& definition = tokenizer->definition();
        bool keeps_bytes = definition.byte_level && definition.normalizer.empty();
        for (const SplitStep& step : definition.splits) {
            const auto* split = std::get_if<PatternSplit>(&step);
            keeps_bytes = keeps_bytes && split != nullptr && split->behaviour != SplitBehaviour::removed;
        }
        for (const AddedToken& token : definition.added)
            keeps_bytes = keeps_bytes && !token.strip_left && !token.strip_right;
        require(!keeps_bytes || tokenizer->decode(ids, true) == text, ExitCode::internal,
                "{} does not survive", arguments[at]);
        fmt::print("{} {} {:.3f}\n", text.size(), ids.size(), seconds.count());
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run({argv + 1, argv + argc});
        return 0;
    } catch (const Error& error) {
        std::fputs((std::string(error.what()) + "\n").c_str(), stderr);
        return static_cast<int>(error.code());
    }
}
