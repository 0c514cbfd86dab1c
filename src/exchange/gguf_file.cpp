#include "exchange/gguf_file.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace longreach::exchange {

namespace {

constexpr uint64_t largest_front = uint64_t{64} << 20;  // bytes before the data
constexpr uint64_t most_entries = 1 << 16;              // keys, and tensors
constexpr uint64_t longest_name = 255;                  // bytes of a key or of a tensor's name
constexpr uint64_t largest_alignment = 1 << 16;

// Types of values, by their numbers in the file.
enum ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, list, u64, i64, f64 };

// The double of the shortest decimal form: 1e-5 as the settings of the model said, not 9.99999975e-6.
double shortest(float value) {
    if (!std::isfinite(value)) return value;
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    double result = 0;
    std::from_chars(text, end, result);
    return result;
}

// Reads the front of the file in order; every error names the file.
class FrontReader {
  public:
    explicit FrontReader(const io::File& file) : file_(file), end_(std::min(file.size(), largest_front)) {}

    template <class... Args>
    void refuse_unless(bool ok, fmt::format_string<Args...> format, Args&&... args) const {
        if (!ok)
            fail(ExitCode::checkpoint, "{}: {}", file_.path(),
                 fmt::format(format, std::forward<Args>(args)...));
    }

    template <class T>
    T plain() {
        T value;
        take(&value, sizeof value);
        return value;
    }

    std::string text(uint64_t longest, std::string_view of) {
        const uint64_t size = plain<uint64_t>();
        refuse_unless(size <= longest && size <= left(), "a string of {} bytes, {}, at byte {} is too long",
                      size, of, at_);
        std::string result(static_cast<size_t>(size), '\0');
        take(result.data(), result.size());
        return result;
    }

    std::string name(std::string_view of) {
        std::string result = text(longest_name, of);
        const bool plain =
            std::all_of(result.begin(), result.end(), [](char c) { return c > 0x20 && c < 0x7f; });
        refuse_unless(plain && !result.empty(), "{} {} is not a name", of, quoted(result));
        return result;
    }

    GgufValue value(const std::string& key) {
        const uint32_t type = plain<uint32_t>();
        GgufValue result;
        if (type != list) {
            result.scalar = scalar(type, key);
            return result;
        }
        result.list = true;
        const uint32_t element = plain<uint32_t>();
        refuse_unless(element != list, "{}: a list of lists is not read", key);
        const uint64_t count = plain<uint64_t>(), least = least_bytes(element, key);
        refuse_unless(count <= left() / least,
                      "{}: {} values do not fit into the file, or into {} bytes before the data", key, count,
                      largest_front);
        if (element == string) {
            result.texts.reserve(static_cast<size_t>(count));
            for (uint64_t i = 0; i < count; ++i) result.texts.push_back(text(left(), key));
            return result;
        }
        result.numbers.reserve(static_cast<size_t>(count));
        for (uint64_t i = 0; i < count; ++i) {
            const json::Value number = scalar(element, key);
            result.numbers.push_back(element == boolean ? number.as_bool() : number.as_number());
        }
        return result;
    }

    uint64_t left() const { return end_ - at_; }
    uint64_t at() const { return at_; }

  private:
    void take(void* out, size_t size) {
        refuse_unless(
            size <= left(),
            "ends at byte {}, before its tensors are described, or describes them in more than {} bytes",
            end_, largest_front);
        auto* to = static_cast<char*>(out);
        while (size > 0) {
            if (at_ < buffer_at_ || at_ >= buffer_at_ + buffer_.size()) {
                buffer_.resize(static_cast<size_t>(std::min<uint64_t>(left(), 1 << 16)));
                file_.read_at(buffer_.data(), buffer_.size(), at_);
                buffer_at_ = at_;
            }
            const auto from = static_cast<size_t>(at_ - buffer_at_);
            const size_t part = std::min(size, buffer_.size() - from);
            std::memcpy(to, buffer_.data() + from, part);
            to += part;
            at_ += part;
            size -= part;
        }
    }

    uint64_t least_bytes(uint32_t type, const std::string& key) const {
        constexpr uint64_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
        refuse_unless(type < std::size(sizes), "{}: {} is not the type of a value", key, type);
        return sizes[type];
    }

    json::Value scalar(uint32_t type, const std::string& key) {
        switch (type) {
            case u8:
                return plain<uint8_t>();
            case i8:
                return plain<int8_t>();
            case u16:
                return plain<uint16_t>();
            case i16:
                return plain<int16_t>();
            case u32:
                return plain<uint32_t>();
            case i32:
                return plain<int32_t>();
            case f32:
                return shortest(plain<float>());
            case u64:
                return plain<uint64_t>();
            case i64:
                return plain<int64_t>();
            case f64:
                return plain<double>();
            case string:
                return text(left(), key);
            case boolean: {
                const uint8_t byte = plain<uint8_t>();
                refuse_unless(byte <= 1, "{}: {} is neither true nor false", key, byte);
                return byte == 1;
            }
            default:
                refuse_unless(false, "{}: {} is not the type of a value", key, type);
                return nullptr;
        }
    }

    const io::File& file_;
    uint64_t at_ = 0, end_ = 0, buffer_at_ = 0;
    std::vector<char> buffer_;
};

// One row of the table; `begin` counts from the first byte of data.
GgufTensor read_tensor(FrontReader& in) {
    GgufTensor tensor;
    tensor.name = in.name("the tensor");
    const uint32_t dimensions = in.plain<uint32_t>();
    in.refuse_unless(dimensions <= 4, "tensor {}: {} dimensions are more than 4", tensor.name, dimensions);
    uint64_t elements = 1, fastest = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
        const uint64_t size = in.plain<uint64_t>();
        in.refuse_unless(size > 0 && size < uint64_t{1} << 40 &&
                             !__builtin_mul_overflow(elements, size, &elements) &&
                             elements < uint64_t{1} << 48,
                         "tensor {}: its dimensions have no size in memory", tensor.name);
        if (i == 0) fastest = size;
        tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    const uint32_t type = in.plain<uint32_t>();
    tensor.type = find_block_type(type);
    in.refuse_unless(tensor.type != nullptr, "tensor {} is of the type {}; the types that are read are {}",
                     tensor.name, name_of_type(type), read_types());
    const auto block = static_cast<uint64_t>(tensor.type->elements);
    in.refuse_unless(fastest % block == 0,
                     "tensor {}: a row of {} elements is not a whole number of blocks of {}, which have {}",
                     tensor.name, fastest, tensor.type->name, block);
    tensor.bytes = elements / block * tensor.type->bytes;
    tensor.begin = in.plain<uint64_t>();
    return tensor;
}

// Gives every tensor its place in the file, and refuses those that have none.
void place(const FrontReader& in, std::vector<GgufTensor>& tensors, uint64_t alignment, uint64_t file_bytes) {
    const uint64_t data = (in.at() + alignment - 1) / alignment * alignment;
    std::sort(tensors.begin(), tensors.end(),
              [](const GgufTensor& a, const GgufTensor& b) { return a.begin < b.begin; });
    uint64_t used = data;
    for (GgufTensor& tensor : tensors) {
        in.refuse_unless(tensor.begin % alignment == 0, "tensor {}: its offset {} is not a multiple of {}",
                         tensor.name, tensor.begin, alignment);
        const bool inside = data <= file_bytes && tensor.begin <= file_bytes - data &&
                            tensor.bytes <= file_bytes - data - tensor.begin;
        in.refuse_unless(inside,
                         "tensor {}: {} bytes at {} after the byte {} end beyond the file, which has {}",
                         tensor.name, tensor.bytes, tensor.begin, data, file_bytes);
        tensor.begin += data;
        in.refuse_unless(tensor.begin >= used, "tensor {} begins inside the tensor before it", tensor.name);
        used = tensor.begin + tensor.bytes;
    }
}

uint64_t alignment_of(const FrontReader& in, const std::map<std::string, GgufValue>& metadata) {
    const auto at = metadata.find("general.alignment");
    if (at == metadata.end()) return 32;
    const std::optional<uint64_t> value = at->second.scalar.to_uint64();
    in.refuse_unless(value && *value <= largest_alignment && std::has_single_bit(*value),
                     "general.alignment is not a power of two up to {}", largest_alignment);
    return *value;
}

}  // namespace

GgufFile GgufFile::open(const std::string& path, io::Links links) {
    GgufFile result;
    try {
        result.file_ = io::File::open(path, links);
    } catch (const Error& error) {
        if (error.code() != ExitCode::data) throw;
        throw Error(ExitCode::checkpoint, error.what(), error.hint());
    }
    FrontReader in(result.file_);
    in.refuse_unless(in.left() >= 24 && in.plain<uint32_t>() == 0x46554747, "is no GGUF file");
    const uint32_t version = in.plain<uint32_t>();
    in.refuse_unless(version == 0 || version % (1 << 16) != 0,
                     "is a big-endian GGUF file; only little-endian ones are read");
    in.refuse_unless(version == 2 || version == 3, "has the version {} of GGUF; 2 and 3 are read", version);
    const uint64_t tensors = in.plain<uint64_t>(), keys = in.plain<uint64_t>();
    in.refuse_unless(keys <= most_entries, "{} keys are more than {}", keys, most_entries);
    in.refuse_unless(tensors <= most_entries, "{} tensors are more than {}", tensors, most_entries);
    for (uint64_t i = 0; i < keys; ++i) {
        const std::string key = in.name("the key");
        const bool added = result.metadata_.emplace(key, in.value(key)).second;
        in.refuse_unless(added, "{} is given twice", key);
    }
    for (uint64_t i = 0; i < tensors; ++i) result.tensors_.push_back(read_tensor(in));
    place(in, result.tensors_, alignment_of(in, result.metadata_), result.file_.size());
    for (size_t i = 0; i < result.tensors_.size(); ++i) {
        const bool added = result.by_name_.emplace(result.tensors_[i].name, i).second;
        in.refuse_unless(added, "tensor {} is given twice", result.tensors_[i].name);
    }
    return result;
}

const GgufValue* GgufFile::find(const std::string& key) const {
    const auto at = metadata_.find(key);
    return at == metadata_.end() ? nullptr : &at->second;
}

const GgufTensor* GgufFile::find_tensor(const std::string& name) const {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

std::vector<float> GgufFile::read(const GgufTensor& tensor) const {
    std::vector<uint8_t> bytes(static_cast<size_t>(tensor.bytes));
    file_.read_at(bytes.data(), bytes.size(), tensor.begin);
    return decode_blocks(*tensor.type, bytes);
}

}  // namespace longreach::exchange
