#include "io/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/hash.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

class StringSink final : public io::ByteSink {
  public:
    using io::ByteSink::write;
    void write(const void* data, size_t size) override { text.append(static_cast<const char*>(data), size); }
    std::string text;
};

// Each tensor's bytes are a running pattern that begins with the length of its name.
std::string pattern(const io::StoredTensor& tensor) {
    std::string bytes(tensor.bytes(), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(tensor.name.size() + 3 * i);
    return bytes;
}

std::string write_all(const io::SafetensorsWriter& writer) {
    StringSink sink;
    writer.write(sink, [](const io::StoredTensor& tensor, io::ByteSink& out) { out.write(pattern(tensor)); });
    return sink.text;
}

const std::vector<io::StoredTensor> sample{
    {.name = "b", .type = io::StoredType::bf16, .shape = {3}},
    {.name = "scalar", .type = io::StoredType::f64, .shape = {}},
    {.name = "a", .type = io::StoredType::bf16, .shape = {2, 2}},
    {.name = "flags", .type = io::StoredType::boolean, .shape = {5}},
    {.name = "empty", .type = io::StoredType::f32, .shape = {0, 4}},
    {.name = "weights", .type = io::StoredType::f32, .shape = {2, 3, 4}},
    {.name = "ids", .type = io::StoredType::i32, .shape = {1}},
    {.name = "\xce\xb1/\"quoted\\\"", .type = io::StoredType::u8, .shape = {1}},
};

}  // namespace

TEST_CASE("safetensors: what is written is read back, whatever the order it was given in") {
    const TempDir dir;
    const io::SafetensorsWriter writer(sample, {{"step", "7"}, {"quote\"", "line\nbreak"}});
    const std::string bytes = write_all(writer);
    CHECK(bytes.size() == writer.file_bytes());
    put(dir / "x", bytes);
    const io::SafetensorsFile file = io::SafetensorsFile::open(dir / "x");
    CHECK(file.metadata() == io::Metadata{{"format", "pt"}, {"step", "7"}, {"quote\"", "line\nbreak"}});
    REQUIRE(file.tensors().size() == sample.size());
    for (const io::StoredTensor& given : sample) {
        const io::StoredTensor* found = file.find(given.name);
        REQUIRE(found != nullptr);
        CHECK(found->type == given.type);
        CHECK(found->shape == given.shape);
        std::string data(found->bytes(), ' ');
        file.read(*found, data.data(), data.size());
        CHECK(data == pattern(*found));
        if (data.size() > 3) {
            file.read(*found, data.data(), 2, 1);
            CHECK(data.substr(0, 2) == pattern(*found).substr(1, 2));
        }
        CHECK(found->begin % (static_cast<uint64_t>(io::bits_of(found->type)) / 8) == 0);
    }
    CHECK(file.find("nothing") == nullptr);
    std::vector<io::StoredTensor> reversed(sample.rbegin(), sample.rend());
    CHECK(write_all(io::SafetensorsWriter(reversed, {{"quote\"", "line\nbreak"}, {"step", "7"}})) == bytes);
    CHECK(contains(error_of([&] { file.read(*file.find("a"), nullptr, 9); }), "bytes 0 + 9 of tensor a"));
}

TEST_CASE("safetensors: the layout is the documented one, to the byte") {
    const io::SafetensorsWriter writer({{.name = "b", .type = io::StoredType::u8, .shape = {2}},
                                        {.name = "a", .type = io::StoredType::f32, .shape = {1}}});
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
        R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})";
    const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
    const std::string length{static_cast<char>(padded.size()), 0, 0, 0, 0, 0, 0, 0};
    CHECK(write_all(writer) == length + padded + std::string("\1\4\7\12\1\4", 6));
}

TEST_CASE("safetensors: no tensors at all") {
    const TempDir dir;
    put(dir / "x", write_all(io::SafetensorsWriter({})));
    CHECK(io::SafetensorsFile::open(dir / "x").tensors().empty());
}

TEST_CASE("safetensors: the writer refuses what it could not read back") {
    const auto outcome = [](std::vector<io::StoredTensor> tensors) {
        return error_of([&] { io::SafetensorsWriter writer(std::move(tensors)); });
    };
    const io::StoredTensor a{.name = "a", .type = io::StoredType::f32, .shape = {1}};
    const io::StoredTensor a_as_u8{.name = "a", .type = io::StoredType::u8, .shape = {1}};
    CHECK(contains(outcome({a, a}), "two tensors have the name a"));
    CHECK(contains(outcome({a, a_as_u8}), "two tensors have the name a"));
    CHECK(contains(outcome({{.name = "n", .type = io::StoredType::f32, .shape = {-1}}}),
                   "no size in whole bytes"));
    CHECK(contains(outcome({{.name = "n", .type = io::StoredType::f4, .shape = {3}}}),
                   "no size in whole bytes"));
    CHECK(contains(
        outcome({{.name = "n", .type = io::StoredType::u8, .shape = {int64_t{1} << 40, int64_t{1} << 40}}}),
        "no size in whole bytes"));
    StringSink sink;
    const io::SafetensorsWriter writer({a});
    CHECK(contains(error_of([&] {
                       writer.write(sink,
                                    [](const io::StoredTensor&, io::ByteSink& out) { out.write("abc"); });
                   }),
                   "tensor a: 3 bytes written, 4 announced"));
}

TEST_CASE("safetensors: a file cut at any byte, or with bytes appended, is refused") {
    const TempDir dir;
    const std::string bytes = write_all(io::SafetensorsWriter(sample));
    for (size_t size = 0; size < bytes.size(); ++size) {
        put(dir / "x", bytes.substr(0, size));
        const std::string outcome = error_of([&] { io::SafetensorsFile::open(dir / "x"); });
        INFO("cut at ", size);
        CHECK(contains(outcome, "4: "));
    }
    put(dir / "x", bytes + '\0');
    CHECK(error_of([&] { io::SafetensorsFile::open(dir / "x"); }) ==
          "4: " + (dir / "x") + ": 1 bytes follow the last tensor");
}

TEST_CASE("safetensors: any byte of a file may be wrong without harm") {
    const TempDir dir;
    const std::string bytes = write_all(io::SafetensorsWriter(sample, {{"k", "v"}}));
    size_t accepted = 0;
    for (size_t i = 0; i < bytes.size(); ++i)
        for (int value = 0; value < 256; value += i < 8 ? 1 : 15) {
            std::string damaged = bytes;
            damaged[i] = static_cast<char>(value);
            put(dir / "x", damaged);
            // Refused with its own exit code, or accepted with every tensor inside the file.
            try {
                const io::SafetensorsFile file = io::SafetensorsFile::open(dir / "x");
                uint64_t total = 0;
                for (const io::StoredTensor& tensor : file.tensors()) {
                    std::string data(tensor.bytes(), ' ');
                    file.read(tensor, data.data(), data.size());
                    total += data.size();
                }
                CHECK(total < bytes.size());
                ++accepted;
            } catch (const Error& error) {
                CHECK(error.code() == ExitCode::checkpoint);
            }
        }
    CHECK(accepted > 0);
}
