#include "eval/partial_sums.h"

#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"

namespace longreach::eval {

namespace {

constexpr std::string_view magic = "longreach sums 2";

class Writer {
  public:
    void number(uint64_t value) {
        for (int byte = 0; byte < 8; ++byte) bytes += static_cast<char>(value >> (8 * byte));
    }
    void sum(const LossSum& s) {
        uint64_t bits = 0;
        std::memcpy(&bits, &s.sum, sizeof bits);
        number(bits);
        number(static_cast<uint64_t>(s.count));
    }
    void document(const DocumentSums& d) {
        sum(d.loss);
        number(static_cast<uint64_t>(d.hits));
    }
    void sums(const std::vector<LossSum>& all) {
        number(all.size());
        for (const LossSum& s : all) sum(s);
    }
    std::string bytes{magic};
};

// After the bytes run out, every method fails.
class Reader {
  public:
    explicit Reader(std::string_view bytes) : rest_(bytes) {}
    uint64_t number() {
        if (rest_.size() < 8) {
            failed_ = true;
            return 0;
        }
        uint64_t value = 0;
        for (size_t byte = 0; byte < 8; ++byte)
            value |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[byte])) << (8 * byte);
        rest_.remove_prefix(8);
        return value;
    }
    LossSum sum() {
        LossSum s;
        const uint64_t bits = number(), count = number();
        std::memcpy(&s.sum, &bits, sizeof bits);
        failed_ = failed_ || count > uint64_t{1} << 62;
        s.count = static_cast<int64_t>(count);
        return s;
    }
    DocumentSums document() {
        DocumentSums d;
        d.loss = sum();
        const uint64_t hits = number();
        failed_ = failed_ || d.loss.count == 0 || hits > static_cast<uint64_t>(d.loss.count);
        d.hits = static_cast<double>(hits);
        return d;
    }
    // Never allocates more than the bytes can hold.
    uint64_t count(uint64_t bytes_each) {
        const uint64_t n = number();
        if (n > rest_.size() / bytes_each) failed_ = true;
        return failed_ ? 0 : n;
    }
    std::vector<LossSum> sums() {
        std::vector<LossSum> all(count(16));
        for (LossSum& s : all) s = sum();
        return all;
    }
    bool failed() const { return failed_; }
    bool done() const { return !failed_ && rest_.empty(); }
    void fail() { failed_ = true; }

  private:
    std::string_view rest_;
    bool failed_ = false;
};

constexpr uint64_t smallest_length = 7 * 8;  // bytes: two sums and three counts

}  // namespace

std::string PartialSums::write() const {
    Writer out;
    out.number(context);
    out.number(next);
    out.number(lengths.size());
    for (const PartialLength& l : lengths) {
        out.sum(l.loss);
        out.sum(l.hits);
        out.sums(l.by_sequence);
        out.sums(l.by_document);
        uint64_t scored = 0;
        for (const DocumentSums& d : l.documents) scored += d.loss.count > 0;
        out.number(scored);
        for (size_t d = 0; d < l.documents.size(); ++d) {
            if (l.documents[d].loss.count == 0) continue;
            out.number(d);
            out.document(l.documents[d]);
        }
    }
    out.number(xxh64(out.bytes));
    return std::move(out.bytes);
}

std::optional<PartialSums> PartialSums::read(const std::string& bytes, uint64_t context, size_t documents) {
    if (bytes.size() < magic.size() + 8 || !bytes.starts_with(magic)) return std::nullopt;
    const std::string_view body = std::string_view(bytes).substr(0, bytes.size() - 8);
    if (Reader(std::string_view(bytes).substr(body.size())).number() != xxh64(body)) return std::nullopt;
    Reader in(body.substr(magic.size()));
    PartialSums s;
    s.context = in.number();
    s.next = in.number();
    if (s.context != context) return std::nullopt;
    s.lengths.resize(in.count(smallest_length));
    for (PartialLength& l : s.lengths) {
        l.loss = in.sum();
        l.hits = in.sum();
        l.by_sequence = in.sums();
        l.by_document = in.sums();
        l.documents.resize(documents);
        const uint64_t scored = in.count(32);
        for (uint64_t i = 0, next = 0; i < scored && !in.failed(); ++i) {
            const uint64_t d = in.number();
            const DocumentSums sums = in.document();
            if (d < next || d >= documents)
                in.fail();
            else
                l.documents[static_cast<size_t>(d)] = sums;
            next = d + 1;
        }
        if (in.failed()) return std::nullopt;
    }
    if (!in.done() || s.lengths.empty()) return std::nullopt;
    return s;
}

}  // namespace longreach::eval
