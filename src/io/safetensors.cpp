#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/json.h"

namespace longreach::io {

namespace {

constexpr uint64_t largest_header = 100'000'000;  // bytes, as in the reference

struct TypeRow {
    StoredType type;
    std::string_view name;
    int bits;
};
constexpr std::array type_rows{
    TypeRow{StoredType::boolean, "BOOL", 8},
    TypeRow{StoredType::f4, "F4", 4},
    TypeRow{StoredType::f6_e2m3, "F6_E2M3", 6},
    TypeRow{StoredType::f6_e3m2, "F6_E3M2", 6},
    TypeRow{StoredType::u8, "U8", 8},
    TypeRow{StoredType::i8, "I8", 8},
    TypeRow{StoredType::f8_e5m2, "F8_E5M2", 8},
    TypeRow{StoredType::f8_e4m3, "F8_E4M3", 8},
    TypeRow{StoredType::f8_e8m0, "F8_E8M0", 8},
    TypeRow{StoredType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    TypeRow{StoredType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    TypeRow{StoredType::i16, "I16", 16},
    TypeRow{StoredType::u16, "U16", 16},
    TypeRow{StoredType::f16, "F16", 16},
    TypeRow{StoredType::bf16, "BF16", 16},
    TypeRow{StoredType::i32, "I32", 32},
    TypeRow{StoredType::u32, "U32", 32},
    TypeRow{StoredType::f32, "F32", 32},
    TypeRow{StoredType::c64, "C64", 64},
    TypeRow{StoredType::f64, "F64", 64},
    TypeRow{StoredType::i64, "I64", 64},
    TypeRow{StoredType::u64, "U64", 64},
};

const TypeRow& row_of(StoredType type) {
    const auto row =
        std::find_if(type_rows.begin(), type_rows.end(), [&](const TypeRow& r) { return r.type == type; });
    check(row != type_rows.end(), "stored type {}", static_cast<int>(type));
    return *row;
}

// The size of a tensor in bits; false if it does not fit into 64 bits. The product is taken from left to
// right, as in the reference: [0, 2^40, 2^40] fits, [2^40, 2^40, 0] does not.
bool count_bits(const StoredTensor& tensor, uint64_t& bits) {
    uint64_t elements = 1;
    for (const int64_t dim : tensor.shape)
        if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dim), &elements)) return false;
    return !__builtin_mul_overflow(elements, static_cast<uint64_t>(bits_of(tensor.type)), &bits);
}

}  // namespace

std::string_view name_of(StoredType type) {
    return row_of(type).name;
}
int bits_of(StoredType type) {
    return row_of(type).bits;
}

SafetensorsWriter::SafetensorsWriter(std::vector<StoredTensor> tensors, const Metadata& metadata)
    : tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
        const int bits_a = bits_of(a.type), bits_b = bits_of(b.type);
        return bits_a != bits_b ? bits_a > bits_b : a.name < b.name;
    });
    json::Value notes = json::Value::object({{"format", "pt"}});
    for (const auto& [key, value] : metadata) notes.set(key, value);
    json::Object header{{"__metadata__", std::move(notes)}};
    header.reserve(tensors_.size() + 1);
    uint64_t end = 0;
    for (StoredTensor& t : tensors_) {
        uint64_t bits = 0;
        const bool fits = std::all_of(t.shape.begin(), t.shape.end(), [](int64_t dim) { return dim >= 0; }) &&
                          count_bits(t, bits) && bits % 8 == 0 &&
                          bits / 8 <= std::numeric_limits<uint64_t>::max() / 2 - end;
        check(fits, "tensor {} has no size in whole bytes", t.name);
        t.begin = end;
        end = t.end = t.begin + bits / 8;
        json::Value shape = json::Value::array();
        for (const int64_t dim : t.shape) shape.push(dim);
        header.push_back(
            {t.name, json::Value::object({{"dtype", name_of(t.type)},
                                          {"shape", std::move(shape)},
                                          {"data_offsets", json::Value::array({t.begin, t.end})}})});
    }
    const json::Value root(std::move(header));
    const auto repeated = json::duplicates(root.as_object());
    check(repeated.empty(), "two tensors have the name {}",
          repeated.empty() ? "" : root.as_object()[repeated[0].second].key);
    std::string text = json::write(root, json::Style::compact);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    check(text.size() <= largest_header, "a safetensors header of {} bytes", text.size());
    const uint64_t length = text.size();
    header_.assign(reinterpret_cast<const char*>(&length), sizeof length);
    header_ += text;
}

uint64_t SafetensorsWriter::file_bytes() const {
    return header_.size() + (tensors_.empty() ? 0 : tensors_.back().end);
}

namespace {

// Counts bytes, to check that the producer of a tensor writes exactly its size.
class CountingSink final : public ByteSink {
  public:
    explicit CountingSink(ByteSink& out) : out_(out) {}
    using ByteSink::write;
    void write(const void* data, size_t size) override {
        bytes += size;
        out_.write(data, size);
    }
    uint64_t bytes = 0;

  private:
    ByteSink& out_;
};

}  // namespace

void SafetensorsWriter::write(ByteSink& out, const Data& data) const {
    out.write(header_);
    for (const StoredTensor& tensor : tensors_) {
        CountingSink counted(out);
        data(tensor, counted);
        check(counted.bytes == tensor.bytes(), "tensor {}: {} bytes written, {} announced", tensor.name,
              counted.bytes, tensor.bytes());
    }
}

namespace {

// Reads the JSON of a header; every error names the file and the tensor.
class HeaderReader {
  public:
    explicit HeaderReader(const std::string& path) : path_(path) {}

    void read(std::string_view text, std::vector<StoredTensor>& tensors, Metadata& metadata) const {
        json::ParseOptions options;
        options.max_bytes = largest_header;
        options.max_depth = 8;
        options.code = ExitCode::checkpoint;
        const json::Value root = json::parse(text, path_ + " (header)", options);
        const json::Object* object = root.to_object();
        refuse_unless(object != nullptr, "the header is not a JSON object");
        tensors.reserve(object->size());
        for (const json::Member& member : *object) {
            if (member.key == "__metadata__") {
                read_metadata(member.value, metadata);
            } else {
                tensors.push_back(read_tensor(member.key, member.value));
            }
        }
    }

  private:
    template <class... Args>
    void refuse_unless(bool ok, fmt::format_string<Args...> format, Args&&... args) const {
        if (!ok)
            fail(ExitCode::checkpoint, "{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
    }

    void read_metadata(const json::Value& value, Metadata& metadata) const {
        if (value.is_null()) return;
        const json::Object* object = value.to_object();
        refuse_unless(object != nullptr, "__metadata__ is not an object");
        for (const json::Member& member : *object) {
            const std::string* text = member.value.to_string();
            refuse_unless(text != nullptr, "__metadata__.{} is not a string", member.key);
            metadata.emplace(member.key, *text);
        }
    }

    void check_name(const std::string& name) const {
        refuse_unless(!name.empty(), "a tensor has an empty name");
        const bool control = std::any_of(name.begin(), name.end(), [](char c) {
            return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
        });
        refuse_unless(!control, "a tensor's name holds a control character");
        const std::string slashed = "/" + name + "/";
        const bool climbs = name.front() == '/' || slashed.find("/../") != std::string::npos;
        refuse_unless(!climbs, "tensor {}: the name looks like a path out of a directory", name);
    }

    StoredTensor read_tensor(const std::string& name, const json::Value& value) const {
        check_name(name);
        const json::Object* object = value.to_object();
        refuse_unless(object != nullptr, "tensor {}: the entry is not an object", name);
        for (const json::Member& member : *object)
            refuse_unless(member.key == "dtype" || member.key == "shape" || member.key == "data_offsets",
                          "tensor {}: unknown field {}", name, member.key);
        const json::Value *type = value.find("dtype"), *shape = value.find("shape"),
                          *offsets = value.find("data_offsets");
        refuse_unless(type != nullptr, "tensor {}: no dtype", name);
        refuse_unless(shape != nullptr, "tensor {}: no shape", name);
        refuse_unless(offsets != nullptr, "tensor {}: no data_offsets", name);

        StoredTensor tensor;
        tensor.name = name;
        const std::string* type_name = type->to_string();
        refuse_unless(type_name != nullptr, "tensor {}: dtype is not a string", name);
        const auto row = std::find_if(type_rows.begin(), type_rows.end(),
                                      [&](const TypeRow& r) { return r.name == *type_name; });
        refuse_unless(row != type_rows.end(), "tensor {}: unknown dtype {}", name, *type_name);
        tensor.type = row->type;

        const json::Array* dims = shape->to_array();
        refuse_unless(dims != nullptr, "tensor {}: shape is not an array", name);
        for (size_t i = 0; i < dims->size(); ++i) {
            const std::optional<int64_t> dim = (*dims)[i].to_int64();
            refuse_unless(dim && *dim >= 0, "tensor {}: shape[{}] is not an integer in [0, 2^63)", name, i);
            tensor.shape.push_back(*dim);
        }
        const json::Array* pair = offsets->to_array();
        refuse_unless(pair != nullptr && pair->size() == 2, "tensor {}: data_offsets is not a pair", name);
        const std::optional<uint64_t> begin = (*pair)[0].to_uint64(), end = (*pair)[1].to_uint64();
        refuse_unless(begin && end, "tensor {}: data_offsets are not integers in [0, 2^64)", name);
        tensor.begin = *begin;
        tensor.end = *end;
        return tensor;
    }

    const std::string& path_;
};

// Rules 6 to 9, tensor by tensor in file order. Returns the end of the last tensor.
uint64_t check_layout(const std::vector<StoredTensor>& tensors, const std::string& path) {
    uint64_t expected = 0;
    for (const StoredTensor& t : tensors) {
        const auto refuse_unless = [&](bool ok, const std::string& what) {
            if (!ok) fail(ExitCode::checkpoint, "{}: tensor {}: {}", path, t.name, what);
        };
        refuse_unless(t.end >= t.begin,
                      fmt::format("its data end at {}, before they begin at {}", t.end, t.begin));
        refuse_unless(t.begin >= expected,
                      fmt::format("its data begin at {}, inside the tensor before it, which ends at {}",
                                  t.begin, expected));
        refuse_unless(t.begin <= expected,
                      fmt::format("its data begin at {}, which leaves a hole after {}", t.begin, expected));
        uint64_t bits = 0;
        refuse_unless(count_bits(t, bits), "its shape overflows 64 bits");
        refuse_unless(bits % 8 == 0, fmt::format("its {} bits are not whole bytes", bits));
        refuse_unless(
            bits / 8 == t.end - t.begin,
            fmt::format("its shape needs {} bytes, but its data have {}", bits / 8, t.end - t.begin));
        expected = t.end;
    }
    return expected;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path, Links links, Disk& disk) {
    SafetensorsFile result;
    try {
        result.file_ = File::open(path, links, disk);
    } catch (const Error& error) {
        if (error.code() != ExitCode::data) throw;
        throw Error(ExitCode::checkpoint, error.what(), error.hint());
    }
    const uint64_t file_bytes = result.file_.size();
    require(file_bytes >= 8, ExitCode::checkpoint, "{}: {} bytes are too few for a safetensors file", path,
            file_bytes);
    uint64_t header_bytes = 0;
    result.file_.read_at(&header_bytes, sizeof header_bytes, 0);
    require(header_bytes <= largest_header, ExitCode::checkpoint,
            "{}: a header of {} bytes is too large (limit {})", path, header_bytes, largest_header);
    require(header_bytes <= file_bytes - 8, ExitCode::checkpoint,
            "{}: a header of {} bytes does not fit into a file of {}", path, header_bytes, file_bytes);
    std::string header(static_cast<size_t>(header_bytes), '\0');
    result.file_.read_at(header.data(), header.size(), 8);
    HeaderReader(path).read(header, result.tensors_, result.metadata_);

    std::sort(result.tensors_.begin(), result.tensors_.end(),
              [](const StoredTensor& a, const StoredTensor& b) {
                  if (a.begin != b.begin) return a.begin < b.begin;
                  return a.end != b.end ? a.end < b.end : a.name < b.name;
              });
    const uint64_t data_bytes = check_layout(result.tensors_, path);
    result.data_offset_ = 8 + header_bytes;
    const uint64_t present = file_bytes - result.data_offset_;
    require(data_bytes <= present, ExitCode::checkpoint,
            "{}: the tensors need {} bytes, but only {} follow the header", path, data_bytes, present);
    require(data_bytes == present, ExitCode::checkpoint, "{}: {} bytes follow the last tensor", path,
            present - data_bytes);
    for (size_t i = 0; i < result.tensors_.size(); ++i) result.by_name_.emplace(result.tensors_[i].name, i);
    return result;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

void SafetensorsFile::read(const StoredTensor& tensor, void* out, uint64_t size, uint64_t offset) const {
    check(offset <= tensor.bytes() && size <= tensor.bytes() - offset,
          "bytes {} + {} of tensor {}, which has {}", offset, size, tensor.name, tensor.bytes());
    file_.read_at(out, static_cast<size_t>(size), data_offset_ + tensor.begin + offset);
}

}  // namespace longreach::io
