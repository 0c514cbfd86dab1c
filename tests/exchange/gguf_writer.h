// GGUF files as other programs write them, and broken ones.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace longreach::test {

class GgufWriter {
  public:
    uint32_t version = 3;
    uint64_t alignment = 32;  // of the data; the file says so if it is not 32

    // A value of any type; type is that of the format.
    template <class T>
    GgufWriter& value(const std::string& key, uint32_t type, T number) {
        begin(key, type);
        keys_ += raw(number);
        return *this;
    }
    GgufWriter& u32(const std::string& key, uint32_t number) { return value(key, 4, number); }
    GgufWriter& f32(const std::string& key, float number) { return value(key, 6, number); }
    GgufWriter& text(const std::string& key, const std::string& text) {
        begin(key, 8);
        keys_ += string(text);
        return *this;
    }
    GgufWriter& texts(const std::string& key, const std::vector<std::string>& texts) {
        begin(key, 9);
        keys_ += raw(uint32_t{8}) + raw(uint64_t{texts.size()});
        for (const std::string& text : texts) keys_ += string(text);
        return *this;
    }
    template <class T>
    GgufWriter& numbers(const std::string& key, uint32_t type, const std::vector<T>& numbers) {
        begin(key, 9);
        keys_ += raw(type) + raw(uint64_t{numbers.size()});
        for (const T number : numbers) keys_ += raw(number);
        return *this;
    }

    // shape: the fastest dimension last, as everywhere here.
    GgufWriter& tensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t type,
                       std::string data) {
        tensors_.push_back({name, shape, type, std::move(data)});
        return *this;
    }
    GgufWriter& tensor(const std::string& name, const std::vector<int64_t>& shape,
                       const std::vector<float>& values) {
        std::string data(values.size() * sizeof(float), '\0');
        std::memcpy(data.data(), values.data(), data.size());
        return tensor(name, shape, 0, std::move(data));
    }

    std::string bytes() {
        if (alignment != 32) u32("general.alignment", static_cast<uint32_t>(alignment));
        std::string file = "GGUF" + raw(version) + raw(uint64_t{tensors_.size()}) + raw(count_) + keys_;
        uint64_t offset = 0;
        for (const Tensor& tensor : tensors_) {
            file += string(tensor.name) + raw(static_cast<uint32_t>(tensor.shape.size()));
            for (size_t i = tensor.shape.size(); i-- > 0;)
                file += raw(static_cast<uint64_t>(tensor.shape[i]));
            file += raw(tensor.type) + raw(offset);
            offset = aligned(offset + tensor.data.size());
        }
        for (const Tensor& tensor : tensors_) {
            file.resize(aligned(file.size()), '\0');
            file += tensor.data;
        }
        return file;
    }

    template <class T>
    static std::string raw(T number) {
        std::string bytes(sizeof number, '\0');
        std::memcpy(bytes.data(), &number, sizeof number);
        return bytes;
    }
    static std::string string(const std::string& text) { return raw(uint64_t{text.size()}) + text; }

  private:
    struct Tensor {
        std::string name;
        std::vector<int64_t> shape;
        uint32_t type;
        std::string data;
    };

    void begin(const std::string& key, uint32_t type) {
        keys_ += string(key) + raw(type);
        ++count_;
    }
    uint64_t aligned(uint64_t at) const { return (at + alignment - 1) / alignment * alignment; }

    std::string keys_;
    uint64_t count_ = 0;
    std::vector<Tensor> tensors_;
};

// A Llama of one layer as small_llama(), without tensors.
inline GgufWriter small_gguf() {
    GgufWriter file;
    file.text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", 8)
        .u32("llama.feed_forward_length", 12)
        .u32("llama.attention.head_count", 2)
        .u32("llama.attention.head_count_kv", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
        .f32("llama.rope.freq_base", 10000.0f);
    return file;
}

}  // namespace longreach::test
