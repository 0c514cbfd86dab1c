#include "simt/banks.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <vector>

#include "simt/machine.h"

namespace longreach::simt {

namespace {

struct WarpAccess {
    uint32_t lanes = 0;
    std::array<uint32_t, 32> offset{};
};
struct Line {
    uint32_t bytes = 0;
    std::array<uint32_t, 32> count{};  // accesses of each lane in this epoch
    std::vector<WarpAccess> accesses;  // of this epoch
};
struct Total {
    uint64_t accesses = 0, degrees = 0, phases = 0;
    int worst = 0;
};

std::unordered_map<uint64_t, Line> open_lines;  // by return address and warp
std::map<uintptr_t, Total> totals;

// 32 banks of 4 bytes. 8 bytes a lane go in two phases of 16 lanes, 16 in four of 8; in a phase a bank
// delivers one word, to any number of lanes. The degree is the worst bank's number of words.
void add(const WarpAccess& access, uint32_t bytes, Total& total) {
    int lanes_at_once = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
    ++total.accesses;
    for (int first = 0; first < 32; first += lanes_at_once) {
        std::array<std::vector<uint32_t>, 32> words;
        for (int lane = first; lane < first + lanes_at_once; ++lane) {
            if (!(access.lanes >> lane & 1)) continue;
            for (uint32_t b = 0; b < std::max(bytes, 4u); b += 4) {
                uint32_t word = (access.offset[static_cast<size_t>(lane)] + b) / 4;
                auto& bank = words[word % 32];
                if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
            }
        }
        size_t degree = 0;
        for (const auto& bank : words) degree = std::max(degree, bank.size());
        if (degree == 0) continue;
        ++total.phases;
        total.degrees += degree;
        total.worst = std::max(total.worst, static_cast<int>(degree));
    }
}

}  // namespace

void banks_access(uintptr_t offset, size_t bytes, uintptr_t place) {
    const Machine& m = machine();
    Line& line = open_lines[place << 6 | static_cast<unsigned>(m.current) / 32];
    line.bytes = static_cast<uint32_t>(bytes);
    auto lane = static_cast<size_t>(m.current) % 32;
    uint32_t n = line.count[lane]++;
    if (line.accesses.size() <= n) line.accesses.resize(n + 1);
    line.accesses[n].lanes |= 1u << lane;
    line.accesses[n].offset[lane] = static_cast<uint32_t>(offset);
}

void banks_new_epoch() {
    if (open_lines.empty()) return;
    for (auto& [key, line] : open_lines)
        for (const WarpAccess& access : line.accesses) add(access, line.bytes, totals[key >> 6]);
    open_lines.clear();
}

std::vector<BankConflicts> bank_conflicts() {
    std::map<std::string, Total> by_line;  // a line may hold several accesses
    for (const auto& [place, total] : totals) {
        Total& sum = by_line[Place(place).text()];
        sum.accesses += total.accesses;
        sum.degrees += total.degrees;
        sum.phases += total.phases;
        sum.worst = std::max(sum.worst, total.worst);
    }
    std::vector<BankConflicts> all;
    for (const auto& [text, total] : by_line)
        all.push_back(
            {text, total.accesses,
             static_cast<double>(total.degrees) / static_cast<double>(std::max<uint64_t>(1, total.phases)),
             total.worst});
    return all;
}

void clear_bank_conflicts() {
    totals.clear();
}

}  // namespace longreach::simt
