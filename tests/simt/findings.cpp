#include "simt/findings.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <tuple>

#include "simt/simt.h"

namespace longreach::simt {

namespace {

std::vector<Finding> collected;
std::vector<Place> numbered_places;  // a number is an index here; no code lies that low
std::map<std::tuple<const char*, uint32_t, uint32_t>, uintptr_t> numbers;

std::string last_parts(const std::string& path) {  // the file's name without its directories
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

// addr2line reads the line table the compiler wrote (-g1). Without the tool the text is module+offset, which
// a reader can look up by hand.
std::string look_up(uintptr_t return_address) {
    Dl_info info{};
    uintptr_t address = return_address - 1;  // inside the call
    if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || info.dli_fname == nullptr)
        return "unknown place";
    char module[4096];
    ssize_t length = readlink("/proc/self/exe", module, sizeof module - 1);
    std::string file = info.dli_fname;
    // A program started by a relative path after a change of directory is found through the kernel's link.
    if (length > 0 && access(file.c_str(), R_OK) != 0) file.assign(module, static_cast<size_t>(length));
    uintptr_t offset = address - reinterpret_cast<uintptr_t>(info.dli_fbase);
    char number[32];
    std::snprintf(number, sizeof number, "0x%zx", static_cast<size_t>(offset));
    // With -i the functions around an inlined one follow: the first line that is a kernel's, not a header's
    // that the dialect brought along, is the one to name.
    std::string text;
    std::string command = "addr2line -i -e '" + file + "' " + number + " 2>/dev/null";
    if (FILE* pipe = popen(command.c_str(), "r")) {
        char line[4096];
        bool of_kernel = false;
        while (std::fgets(line, sizeof line, pipe) != nullptr) {
            std::string one = line;
            one = one.substr(0, one.find_first_of(" \n"));  // " (discriminator n)" may follow
            bool header = one.find("/cuda_") != std::string::npos ||
                          one.find("/vector_") != std::string::npos ||
                          one.find("/simt/device.h") != std::string::npos;
            if (text.empty() || (!of_kernel && !header)) text = one;
            of_kernel |= !header;
        }
        pclose(pipe);
    }
    if (text.empty() || text[0] == '?') return last_parts(file) + "+" + number;
    return last_parts(text);
}

}  // namespace

const char* name_of(Kind kind) {
    static const char* const names[] = {"barrier_divergence",
                                        "barrier_exit",
                                        "deadlock",
                                        "warp_mask",
                                        "warp_divergence",
                                        "warp_exit",
                                        "shared_race",
                                        "global_race",
                                        "uninitialised_shared",
                                        "uninitialised_global",
                                        "misaligned",
                                        "shared_out_of_bounds",
                                        "global_out_of_bounds",
                                        "array_out_of_bounds",
                                        "host_access",
                                        "invalid_arithmetic",
                                        "shared_too_small",
                                        "shared_too_large",
                                        "shared_not_asked_for",
                                        "launch_shape",
                                        "async_unfinished",
                                        "async_source_changed",
                                        "async_unwaited",
                                        "poison_in_output",
                                        "schedule_dependent",
                                        "wrong_architecture",
                                        "phase_barrier_misused",
                                        "phase_barrier_unfenced",
                                        "phase_bytes",
                                        "phase_wrapped",
                                        "named_barrier_misused",
                                        "proxy_unfenced",
                                        "product_mismatch",
                                        "product_descriptor",
                                        "product_unfenced",
                                        "product_in_flight",
                                        "register_pool",
                                        "tensor_map",
                                        "api"};
    static_assert(sizeof names / sizeof *names == static_cast<size_t>(Kind::api) + 1);
    return names[static_cast<size_t>(kind)];
}

Place::Place(uintptr_t at) : address(at) {
    if (at < numbered_places.size()) *this = numbered_places[at];
}

uintptr_t Place::numbered() const {
    if (file == nullptr) return address;
    auto [at, fresh] = numbers.try_emplace({file, line, column}, numbered_places.size());
    if (fresh) numbered_places.push_back(*this);
    return at->second;
}

std::string Place::text() const {
    if (file != nullptr) return last_parts(file) + ":" + std::to_string(line);
    if (address == 0) return "unknown place";
    static std::map<uintptr_t, std::string> known;
    auto [at, fresh] = known.try_emplace(address);
    if (fresh) at->second = look_up(address);
    return at->second;
}

const std::vector<Finding>& findings() {
    return collected;
}

void clear_findings() {
    collected.clear();
}

void report(Finding finding) {
    for (const Finding& earlier : collected)
        if (earlier.kind == finding.kind && earlier.place == finding.place &&
            earlier.other_place == finding.other_place && !finding.place.empty())
            return;
    collected.push_back(std::move(finding));
}

std::string thread_ranges(const std::vector<int>& sorted) {
    std::string text;
    for (size_t i = 0; i < sorted.size();) {
        size_t last = i;
        while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
        if (!text.empty()) text += ", ";
        text += std::to_string(sorted[i]);
        if (last > i) text += "-" + std::to_string(sorted[last]);
        i = last + 1;
    }
    return text;
}

}  // namespace longreach::simt
