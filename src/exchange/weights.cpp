#include "exchange/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "exchange/model_directory.h"
#include "io/safetensors.h"

namespace longreach::exchange {

namespace {

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr uint64_t largest_index = uint64_t{64} << 20;  // bytes
constexpr size_t most_shards = 4096;

bool is_shard_name(const std::string& name) {
    const auto plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
               c == '_' || c == '-';
    };
    return name.size() <= 255 && !name.starts_with('.') && name.ends_with(".safetensors") &&
           std::all_of(name.begin(), name.end(), plain);
}

std::vector<float> values_of(const io::SafetensorsFile& file, const io::StoredTensor& tensor) {
    const uint64_t bytes = tensor.bytes();
    std::vector<float> values(
        static_cast<size_t>(bytes * 8 / static_cast<uint64_t>(io::bits_of(tensor.type))));
    if (tensor.type == io::StoredType::f32) {
        file.read(tensor, values.data(), bytes);
        return values;
    }
    const bool half = tensor.type == io::StoredType::f16;
    std::vector<uint16_t> bits(values.size());
    file.read(tensor, bits.data(), bytes);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = half ? half_value(bits[i]) : std::bit_cast<float>(uint32_t{bits[i]} << 16);
    return values;
}

std::string refusal_of(io::StoredType type) {
    const bool read =
        type == io::StoredType::f32 || type == io::StoredType::f16 || type == io::StoredType::bf16;
    return read ? "" : fmt::format("is {}; only F32, F16 and BF16 are read", io::name_of(type));
}

}  // namespace

WeightIndex parse_index(std::string_view text, const std::string& file) {
    const json::Value root =
        json::parse(text, file, {.max_bytes = largest_index, .code = ExitCode::checkpoint});
    const json::Value* map = root.find("weight_map");
    require(map != nullptr && map->is_object(), ExitCode::checkpoint, "{}: weight_map is not an object",
            file);
    WeightIndex index;
    std::set<std::string> shards;
    for (const json::Member& member : map->as_object()) {
        const std::string* shard = member.value.to_string();
        require(shard != nullptr && is_shard_name(*shard), ExitCode::checkpoint,
                "{}:{}:{}: tensor {}: the file must be a plain name that ends in .safetensors", file,
                member.value.at().line, member.value.at().column, shown(member.key));
        index.files.emplace(member.key, *shard);
        shards.insert(*shard);
    }
    require(!index.files.empty(), ExitCode::checkpoint, "{}: weight_map is empty", file);
    require(shards.size() <= most_shards, ExitCode::checkpoint, "{}: {} files are more than {}", file,
            shards.size(), most_shards);
    index.shards.assign(shards.begin(), shards.end());
    return index;
}

Weights Weights::open(const std::string& directory) {
    Weights result;
    const std::string single = file_in(directory, single_file), listed = file_in(directory, index_file);
    const auto add = [&](const std::string& path, const WeightIndex* index) {
        const auto file = std::make_shared<const io::SafetensorsFile>(io::SafetensorsFile::open(path));
        for (const io::StoredTensor& tensor : file->tensors()) {
            if (index != nullptr) {
                const auto at = index->files.find(tensor.name);
                require(at != index->files.end() && at->second == io::base_name(path), ExitCode::checkpoint,
                        "{} holds {}, which {} does not place there", path, tensor.name, listed);
            }
            result.add(tensor.name, {tensor.shape, refusal_of(tensor.type),
                                     [file, at = &tensor] { return values_of(*file, *at); }});
        }
    };
    if (io::kind_of(single, io::Links::follow) == io::PathKind::file) {
        add(single, nullptr);
        return result;
    }
    if (io::kind_of(listed, io::Links::follow) != io::PathKind::file)
        throw Error(ExitCode::checkpoint,
                    fmt::format("{} has neither {} nor {}", directory, single_file, index_file),
                    "only safetensors are read; save the model as safetensors first");
    const WeightIndex index = parse_index(io::read_file(listed, largest_index, io::Links::follow), listed);
    for (const std::string& shard : index.shards) add(file_in(directory, shard), &index);
    for (const auto& [name, shard] : index.files)
        require(result.tensors_.count(name) > 0, ExitCode::checkpoint, "{} lacks {}, which {} places there",
                io::join_path(directory, shard), shown(name), listed);
    return result;
}

bool Weights::add(const std::string& name, ForeignTensor tensor) {
    return tensors_.emplace(name, std::move(tensor)).second;
}

const ForeignTensor* Weights::find(const std::string& name) const {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? nullptr : &at->second;
}

float half_value(uint16_t bits) {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16, exponent = (bits >> 10) & 31,
                   fraction = bits & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
    if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
    const float value = std::ldexp(static_cast<float>(fraction), -24);  // subnormal
    return sign ? -value : value;
}

}  // namespace longreach::exchange
