#include "exchange/tokenizer_files.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/tokenizer_file.h"
#include "exchange/model_directory.h"
#include "io/file.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/learn.h"

namespace longreach::exchange {

namespace {

// Of a tokenizer that this program trained or read without a file about its use; a foreign one may begin a text otherwise.
void find_boundary(const tokenizer::Tokenizer& tokenizer, TokenizerFiles& files) {
    if (const std::optional<int32_t> id = tokenizer.find_added(tokenizer::boundary_name)) {
        files.boundary = *id;
        files.boundary_name = tokenizer::boundary_name;
    }
}

}  // namespace

std::vector<std::string> tokenizer_file_names(const std::string& directory) {
    std::vector<std::string> names;
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
          "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json"})
        if (io::kind_of(io::join_path(directory, name), io::Links::follow) == io::PathKind::file)
            names.emplace_back(name);
    return names;
}

TokenizerFiles find_tokenizer(const std::string& directory) {
    TokenizerFiles files;
    files.names = tokenizer_file_names(directory);
    const auto holds = [&](const char* name) {
        return std::find(files.names.begin(), files.names.end(), name) != files.names.end();
    };
    if (!holds("tokenizer.json") && !(holds("vocab.json") && holds("merges.txt"))) return files;
    describe_tokenizer(files, [&] {
        auto tokenizer = data::load_tokenizer(directory);
        if (holds("tokenizer.json") && !holds("tokenizer_config.json") && !holds("generation_config.json"))
            find_boundary(*tokenizer, files);
        return tokenizer;
    });
    return files;
}

void describe_tokenizer(TokenizerFiles& files,
                        const std::function<std::shared_ptr<const tokenizer::Tokenizer>()>& load) {
    try {
        const std::shared_ptr<const tokenizer::Tokenizer> tokenizer = load();
        files.fingerprint = tokenizer->fingerprint();
        files.vocab_size = tokenizer->vocab_size();
        files.description = fmt::format("tokenizer: {} tokens, fingerprint {}", tokenizer->vocab_size(),
                                        format_hash64(files.fingerprint));
    } catch (const Error& error) {
        if (error.code() == ExitCode::internal || error.code() == ExitCode::disk) throw;
        files.problem = fmt::format("the tokenizer cannot be read here: {}", error.what());
    }
}

std::vector<std::pair<std::string, json::Value>> usage_files(const TokenizerFiles& files) {
    if (files.boundary < 0) return {};
    const json::Value generation = json::Value::object({{"bos_token_id", files.boundary},
                                                        {"eos_token_id", files.boundary},
                                                        {"pad_token_id", files.boundary}});
    const std::string& token = files.boundary_name;
    return {{"generation_config.json", generation},
            {"tokenizer_config.json", json::Value::object({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                                           {"bos_token", token},
                                                           {"eos_token", token},
                                                           {"pad_token", token},
                                                           {"clean_up_tokenization_spaces", false}})}};
}

TokenizerFiles write_byte_tokenizer(const std::string& to) {
    io::write_file_atomically(io::join_path(to, "tokenizer.json"),
                              json::write(tokenizer::bytes_as_json(), json::Style::pretty));
    TokenizerFiles files = find_tokenizer(to);
    files.bytes = true;
    return files;
}

std::vector<std::string> copy_tokenizer_files(const TokenizerFiles& files, const std::string& from,
                                              const std::string& to) {
    std::vector<std::string> written = files.names;
    for (const std::string& name : files.names) {
        const std::string path = file_in(from, name),
                          text = io::read_file(path, largest_tokenizer_file, io::Links::follow);
        if (name.ends_with(".json"))
            json::parse(text, path, {.max_bytes = largest_tokenizer_file, .code = ExitCode::data});
        io::write_file_atomically(io::join_path(to, name), text);
    }
    for (const auto& [name, text] : files.made) {
        io::write_file_atomically(io::join_path(to, name), text);
        written.push_back(name);
    }
    return written;
}

}  // namespace longreach::exchange
