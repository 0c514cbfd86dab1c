// The log of collectives that a rank leaves behind: as it is, and with the header's checksum made right.
#include <cstring>

#include "base/hash.h"
#include "ranks/collective_log.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

void try_to_read(const std::string& path) {
    accepts([&] {
        const ranks::CollectiveLogContents log = ranks::read_collective_log(path);
        holds(log.records.size() <= ranks::collective_slots, "more records than slots");
        for (const ranks::CollectiveRecord& record : log.records) ranks::describe(record);
    });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Scratch scratch;
    std::string bytes(text_of(data, size));
    try_to_read(scratch.put("rank_0.log", bytes));
    constexpr size_t checked = 40;
    if (size < checked + sizeof(uint64_t)) return 0;
    const uint64_t check = xxh64(bytes.data(), checked);
    std::memcpy(bytes.data() + checked, &check, sizeof check);
    try_to_read(scratch.put("rank_0.log", bytes));
    return 0;
}
