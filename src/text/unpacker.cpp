#include "text/unpacker.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

#ifdef LONGREACH_ZLIB
#include <zlib.h>
#endif
#ifdef LONGREACH_ZSTD
#include <zstd.h>
#endif

namespace longreach::text {

namespace {

#ifdef LONGREACH_ZLIB
class Gzip final : public Unpacker {
  public:
    Gzip() {
        constexpr int gzip_only = 16 + MAX_WBITS;
        check(inflateInit2(&stream_, gzip_only) == Z_OK, "zlib does not start");
    }
    ~Gzip() override { inflateEnd(&stream_); }
    Gzip(const Gzip&) = delete;
    Gzip& operator=(const Gzip&) = delete;

    Step step(std::span<const char> in, std::span<char> out) override {
        constexpr size_t most = std::numeric_limits<uInt>::max();
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
        stream_.avail_in = static_cast<uInt>(std::min(in.size(), most));
        stream_.next_out = reinterpret_cast<Bytef*>(out.data());
        stream_.avail_out = static_cast<uInt>(std::min(out.size(), most));
        const uInt in_before = stream_.avail_in, out_before = stream_.avail_out;
        Step step;
        if (in_before > 0) between_ = false;
        const int code = inflate(&stream_, Z_NO_FLUSH);
        step.consumed = in_before - stream_.avail_in;
        step.produced = out_before - stream_.avail_out;
        if (code == Z_STREAM_END) {
            between_ = true;
            inflateReset(&stream_);  // for the next member
        } else if (code != Z_OK && code != Z_BUF_ERROR) {
            step.error = stream_.msg != nullptr ? stream_.msg : "zlib error";
        }
        return step;
    }
    bool between_members() const override { return between_; }

  private:
    z_stream stream_{};
    bool between_ = true;
};
#endif

#ifdef LONGREACH_ZSTD
class Zstandard final : public Unpacker {
  public:
    Zstandard() : stream_(ZSTD_createDStream()) { check(stream_ != nullptr, "zstd does not start"); }
    ~Zstandard() override { ZSTD_freeDStream(stream_); }
    Zstandard(const Zstandard&) = delete;
    Zstandard& operator=(const Zstandard&) = delete;

    Step step(std::span<const char> in, std::span<char> out) override {
        ZSTD_inBuffer from{in.data(), in.size(), 0};
        ZSTD_outBuffer to{out.data(), out.size(), 0};
        const size_t left = ZSTD_decompressStream(stream_, &to, &from);
        Step step{from.pos, to.pos, ""};
        if (ZSTD_isError(left) != 0) step.error = ZSTD_getErrorName(left);
        if (step.consumed + step.produced > 0) between_ = left == 0;
        return step;
    }
    bool between_members() const override { return between_; }

  private:
    ZSTD_DStream* stream_;
    bool between_ = true;
};
#endif

}  // namespace

std::string_view archive_kind(std::string_view head) {
    if (head.starts_with("\x1f\x8b")) return "gzip";
    if (head.starts_with("\x28\xb5\x2f\xfd")) return "Zstandard";
    return "";
}

std::unique_ptr<Unpacker> make_unpacker([[maybe_unused]] std::string_view kind) {
#ifdef LONGREACH_ZLIB
    if (kind == "gzip") return std::make_unique<Gzip>();
#endif
#ifdef LONGREACH_ZSTD
    if (kind == "Zstandard") return std::make_unique<Zstandard>();
#endif
    return nullptr;
}

}  // namespace longreach::text
