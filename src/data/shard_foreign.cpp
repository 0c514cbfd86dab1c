// Token shards of other programs (llm.c and modded-nanogpt, llmq, headerless), and the names of
// formats that are not token shards.
#include <limits>

#include "base/error.h"
#include "data/shard_format.h"

namespace longreach::data {

namespace {

constexpr uint64_t foreign_header_bytes = 1024;  // 256 int32, for llm.c and llmq alike
constexpr int32_t llmc_v1_magic = 20240520, llmc_v7_magic = 20240801;
constexpr std::string_view llmq_magic = "BIN.TOK\n";
using HeaderWords = std::array<int32_t, foreign_header_bytes / 4>;

HeaderWords read_header(const io::File& file, std::string_view format) {
    require(file.size() >= foreign_header_bytes, ExitCode::data,
            "{}: {} bytes are too few for the {}-byte header of {}", file.path(), file.size(),
            foreign_header_bytes, format);
    HeaderWords words;
    file.read_at(words.data(), sizeof words, 0);
    return words;
}

// llm.c: [0] magic, [1] version, [2] tokens. 16-bit GPT-2 tokens or 32-bit Llama-3 tokens; the end-of-text
// (GPT-2) or begin-of-text (Llama 3) token precedes each document.
ShardInfo parse_llmc(const io::File& file) {
    const HeaderWords h = read_header(file, "llm.c");
    const bool wide = h[0] == llmc_v7_magic;
    const int32_t expected = wide ? 7 : 1;
    require(h[1] == expected, ExitCode::data, "{}: llm.c version {} with magic {}; version {} was expected",
            file.path(), h[1], h[0], expected);
    require(h[2] >= 0, ExitCode::data, "{}: the header gives {} tokens", file.path(), h[2]);
    ShardInfo info;
    info.format = wide ? ShardFormat::llmc_v7 : ShardFormat::llmc_v1;
    info.type = {wide ? 4 : 2, false};
    info.tokens = static_cast<uint64_t>(h[2]);
    info.boundary_token = wide ? 128000 : 50256;
    require_size(file, foreign_header_bytes + info.token_bytes(),
                 fmt::format("{} + {} tokens * {}", foreign_header_bytes, info.tokens, info.type.bytes));
    return info;
}

// llmq: magic, then int32 [2] version, [3] bytes per token, [4] tokens, [5] vocabulary, [6] has masks. If
// it has, one bit per token follows the tokens. Early writers had no field [6]: the filler "****" of the
// unused header is there.
ShardInfo parse_llmq(const io::File& file) {
    constexpr int32_t filler = 0x2a2a2a2a;
    const HeaderWords h = read_header(file, "llmq");
    require(h[2] == 1 || h[2] == 2, ExitCode::data, "{}: llmq version {}; versions 1 and 2 are read",
            file.path(), h[2]);
    require(h[3] == 4, ExitCode::data, "{}: llmq tokens of {} bytes, not 4", file.path(), h[3]);
    require(h[4] >= 0, ExitCode::data, "{}: the header gives {} tokens", file.path(), h[4]);
    require(h[5] >= 1, ExitCode::data, "{}: the header gives a vocabulary of {}", file.path(), h[5]);
    require(h[6] == 0 || h[6] == 1 || h[6] == filler, ExitCode::data, "{}: the mask flag is {}, not 0 or 1",
            file.path(), h[6]);
    ShardInfo info;
    info.format = ShardFormat::llmq;
    info.type = {4, true};
    info.tokens = static_cast<uint64_t>(h[4]);
    info.vocab = h[5];
    const uint64_t masks = h[6] == 1 ? (info.tokens + 7) / 8 : 0;
    require_size(
        file, foreign_header_bytes + info.token_bytes() + masks,
        fmt::format("{} + {} tokens * 4 + {} bytes of masks", foreign_header_bytes, info.tokens, masks));
    return info;
}

}  // namespace

bool is_foreign_shard(const FileHead& head) {
    if (head.starts_with(llmq_magic)) return true;
    if (head.file_bytes < 4) return false;
    const int32_t magic = load<int32_t>(head.bytes.data());
    return magic == llmc_v1_magic || magic == llmc_v7_magic;
}

ShardInfo parse_foreign_shard(const io::File& file) {
    const FileHead head = FileHead::read(file);
    ShardInfo info = head.starts_with(llmq_magic) ? parse_llmq(file) : parse_llmc(file);
    info.data_offset = foreign_header_bytes;
    info.file_bytes = head.file_bytes;
    return info;
}

ShardInfo parse_raw_shard(const io::File& file, int width) {
    require(width == 2 || width == 4, ExitCode::usage,
            "raw token files need data.width = 2 or 4 (bytes per token), not {}", width);
    ShardInfo info;
    info.format = ShardFormat::raw;
    info.type = {width, false};
    info.file_bytes = file.size();
    require(info.file_bytes % static_cast<uint64_t>(width) == 0, ExitCode::data,
            "{}: {} bytes are not a whole number of {}-byte tokens", file.path(), info.file_bytes, width);
    info.tokens = info.file_bytes / static_cast<uint64_t>(width);
    return info;
}

std::string describe_other_file(const FileHead& head) {
    using namespace std::string_view_literals;
    struct Known {
        std::string_view magic, what;
    };
    static constexpr std::array known{
        Known{"\x1f\x8b"sv, "a gzip archive (unpack it first)"},
        Known{"\x28\xb5\x2f\xfd"sv, "a Zstandard archive (unpack it first)"},
        Known{"\xfd\x37zXZ\0"sv, "an xz archive (unpack it first)"},
        Known{"PK\x03\x04"sv, "a zip archive (.zip, .npz or a PyTorch checkpoint)"},
        Known{"\x93NUMPY"sv, "a NumPy array (.npy)"},
        Known{"PAR1"sv, "a Parquet table (write its text as JSONL first, with tools/parquet-to-jsonl)"},
        Known{"ARROW1"sv, "an Arrow file (tokenise its text first)"},
        Known{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
        Known{"GGUF"sv, "a GGUF model"},
        Known{"KD.LOGP\n"sv, "a file of teacher log-probabilities"},
    };
    for (const Known& k : known)
        if (head.starts_with(k.magic)) return std::string(k.what);
    if (head.file_bytes >= 4) {
        switch (load<int32_t>(head.bytes.data())) {
            case 20240522:
                return "an llm.c evaluation set";
            case 20240326:
                return "an llm.c model checkpoint";
            case 20240527:
                return "an llm.c optimizer state";
            case 20240328:
                return "an llm.c tokenizer";
            default:
                break;
        }
    }
    const bool brace = head.file_bytes > 9 && head.bytes[8] == '{';
    if (brace && load<uint64_t>(head.bytes.data()) <= head.file_bytes - 8) return "a safetensors file";
    if (head.bytes[0] == '{' || head.bytes[0] == '[') return "JSON text (tokenise it first)";
    return {};
}

}  // namespace longreach::data
