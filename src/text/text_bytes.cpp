#include "text/text_bytes.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "text/unpacker.h"

namespace longreach::text {

namespace {

constexpr size_t packed_window = size_t{1} << 17;  // bytes of an archive read at a time

class FileBytes final : public TextBytes {
  public:
    explicit FileBytes(io::File file) : file_(std::move(file)), size_(file_.size()) {}
    size_t read(char* out, size_t size) override {
        const size_t count = static_cast<size_t>(std::min<uint64_t>(size, size_ - at_));
        file_.read_at(out, count, at_);
        at_ += count;
        return count;
    }
    uint64_t position() const override { return at_; }
    const std::string& path() const { return file_.path(); }

  private:
    io::File file_;
    uint64_t size_, at_ = 0;
};

class StandardInput final : public TextBytes {
  public:
    size_t read(char* out, size_t size) override {
        size_t count = 0;
        while (count < size) {
            const ssize_t got = ::read(STDIN_FILENO, out + count, size - count);
            if (got < 0 && errno == EINTR) continue;
            require(got >= 0, ExitCode::disk, "standard input: {}", std::strerror(errno));
            if (got == 0) break;
            count += static_cast<size_t>(got);
        }
        at_ += count;
        return count;
    }
    uint64_t position() const override { return at_; }

  private:
    uint64_t at_ = 0;
};

class PackedBytes final : public TextBytes {
  public:
    PackedBytes(io::File file, std::unique_ptr<Unpacker> unpacker)
        : packed_(std::move(file)), unpacker_(std::move(unpacker)), buffer_(packed_window) {}

    size_t read(char* out, size_t size) override {
        size_t count = 0;
        while (count < size) {
            if (begin_ == end_) {
                begin_ = 0;
                end_ = packed_.read(buffer_.data(), buffer_.size());
            }
            const Unpacker::Step step =
                unpacker_->step({buffer_.data() + begin_, end_ - begin_}, {out + count, size - count});
            require(step.error.empty(), ExitCode::data, "{}: the archive is damaged: {}", packed_.path(),
                    step.error);
            begin_ += step.consumed;
            count += step.produced;
            if (end_ > 0 || step.produced > 0) continue;
            require(unpacker_->between_members(), ExitCode::data, "{}: the archive ends early",
                    packed_.path());
            break;
        }
        return count;
    }
    uint64_t position() const override { return packed_.position() - (end_ - begin_); }

  private:
    FileBytes packed_;
    std::unique_ptr<Unpacker> unpacker_;
    std::vector<char> buffer_;
    size_t begin_ = 0, end_ = 0;  // what of the buffer has not been unpacked
};

std::string_view kind_of_archive(const io::File& file) {
    std::array<char, 4> head{};
    const size_t size = static_cast<size_t>(std::min<uint64_t>(file.size(), head.size()));
    file.read_at(head.data(), size, 0);
    return archive_kind({head.data(), size});
}

}  // namespace

std::unique_ptr<TextBytes> open_text(const std::string& path, io::Links links) {
    if (path == standard_input) return std::make_unique<StandardInput>();
    io::File file = io::File::open(path, links);
    const std::string_view kind = kind_of_archive(file);
    if (kind.empty()) return std::make_unique<FileBytes>(std::move(file));
    std::unique_ptr<Unpacker> unpacker = make_unpacker(kind);
    if (!unpacker)
        throw Error(ExitCode::usage, fmt::format("{} is a {} archive", path, kind),
                    "this build was made without the library that unpacks it; unpack it first");
    return std::make_unique<PackedBytes>(std::move(file), std::move(unpacker));
}

bool is_packed(const io::File& file) {
    return !kind_of_archive(file).empty();
}

std::string unpacked_name(const std::string& name) {
    for (const std::string_view ending : {".gz", ".zst"})
        if (name.size() > ending.size() && name.ends_with(ending))
            return name.substr(0, name.size() - ending.size());
    return name;
}

}  // namespace longreach::text
