#include "model/arena.h"

#include <algorithm>
#include <map>

#include "base/units.h"

namespace longreach::model {

namespace {
constexpr int64_t alignment = 256;  // bytes: as on a GPU, and more than any vector needs
}

Arena::~Arena() {
    if (memory_) ops_.release(memory_, peak_);
}

Tensor Arena::reserve(const std::string& name, DType dtype, std::initializer_list<int64_t> dims) {
    // Sizes are products of numbers from a config. No machine has this much memory, and it is far below the
    // limit of 64 bits.
    constexpr double most_bytes = 1e18;
    double size = static_cast<double>(size_of(dtype));
    for (const int64_t d : dims) size *= static_cast<double>(d);
    require(size + static_cast<double>(offset_) < most_bytes, ExitCode::device,
            "the memory plan needs more than {:.0e} bytes: {} alone has {:.2g}", most_bytes, name, size);
    check(!committed_, "{} is reserved after commit()", name);
    const Tensor t(&memory_, offset_, dtype, dims);
    const int64_t bytes = (t.bytes() + alignment - 1) / alignment * alignment;
    entries_.push_back({group_, name, offset_, bytes});
    offset_ += bytes;
    peak_ = std::max(peak_, offset_);
    return t;
}

void Arena::commit() {
    check(!committed_, "a plan is committed once");
    memory_ = static_cast<std::byte*>(ops_.allocate(peak_));
    committed_ = true;
}

namespace {

// Bytes covered by at least one of the reservations: the layers of an evaluation overlap.
int64_t covered(std::vector<Arena::Entry> entries) {
    std::sort(entries.begin(), entries.end(),
              [](const Arena::Entry& a, const Arena::Entry& b) { return a.begin < b.begin; });
    int64_t bytes = 0, end = 0;
    for (const Arena::Entry& e : entries) {
        bytes += std::max<int64_t>(0, e.begin + e.bytes - std::max(end, e.begin));
        end = std::max(end, e.begin + e.bytes);
    }
    return bytes;
}

}  // namespace

std::string Arena::table() const {
    std::vector<std::string> order;
    struct Group {
        std::vector<Entry> entries;
        std::map<std::string, std::vector<Entry>> parts;
    };
    std::map<std::string, Group> groups;
    for (const Entry& e : entries_) {
        if (!groups.count(e.group)) order.push_back(e.group);
        Group& g = groups[e.group];
        g.entries.push_back(e);
        // "layers.3.qkv" and "layers.4.qkv" are one part of the table.
        g.parts[e.name.substr(e.name.rfind('.') + 1)].push_back(e);
    }
    std::string out;
    for (const std::string& name : order) {
        const Group& g = groups[name];
        std::vector<std::pair<int64_t, std::string>> parts;
        for (const auto& [part, entries] : g.parts) parts.push_back({covered(entries), part});
        std::sort(parts.rbegin(), parts.rend());
        out += fmt::format("  {:<24}{:>12}  ", name, human_bytes(covered(g.entries)));
        for (size_t i = 0; i < parts.size() && i < 4; ++i)
            out += fmt::format("{}{} {}", i ? ", " : "", parts[i].second, human_bytes(parts[i].first));
        if (parts.size() > 4) out += ", ...";
        out += '\n';
    }
    out += fmt::format("  {:<24}{:>12}\n", "planned", human_bytes(peak_));
    return out;
}

}  // namespace longreach::model
