#include "ranks/collective_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "io/file.h"

namespace longreach::ranks {

namespace {

// In the order of CollectiveOp and ElementType, whose values begin with 1.
constexpr std::array<std::string_view, 9> op_names = {"?",          "all_reduce", "reduce_scatter",
                                                      "all_gather", "broadcast",  "all_to_all",
                                                      "send",       "receive",    "barrier"};
constexpr std::array<std::string_view, 8> element_names = {"?",   "f32", "bf16", "f16",
                                                           "f64", "i32", "i64",  "u8"};

constexpr char magic[8] = {'L', 'R', 'C', 'O', 'L', 'L', '0', '1'};

struct Header {
    char magic[8];
    uint32_t slots, slot_bytes;
    int32_t rank, ranks;
    int64_t process, started_ns;
    uint64_t check;  // of all above
};

// Each check is written after what it covers, so that a reader recognises a slot that was being filled, a
// mixture of two records. If the end is torn or belongs to the previous record, the record itself can still
// be read without its end.
struct Slot {
    uint64_t sequence;
    int64_t step;
    uint64_t count;
    int64_t begun_ns;
    uint8_t op, element, unused[6];
    uint64_t begin_check;  // of all above
    int64_t finished_ns;
    uint64_t end_check;  // of sequence and finished_ns
};
static_assert(sizeof(Header) == 48 && sizeof(Slot) == 64, "the layout is that of the file");

constexpr size_t file_bytes = sizeof(Header) + collective_slots * sizeof(Slot);

uint64_t begin_check(const Slot& slot) {
    return xxh64(&slot, offsetof(Slot, begin_check), 1);
}

uint64_t end_check(const Slot& slot) {
    const uint64_t covered[2] = {slot.sequence, static_cast<uint64_t>(slot.finished_ns)};
    return xxh64(covered, sizeof covered, 2);
}

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

// Stores reach the mapping in this order: only the compiler could reorder them, not the death of the process.
void publish(uint64_t& check, uint64_t value) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::atomic_ref<uint64_t>(check).store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

Slot* slots(unsigned char* map) {
    return reinterpret_cast<Slot*>(map + sizeof(Header));
}

Slot& slot_of(unsigned char* map, uint64_t sequence) {
    return slots(map)[(sequence - 1) % collective_slots];
}

// For the file's bytes and for our own memory.
enum class SlotKind { empty, whole, torn };
SlotKind read_slot(const Slot& slot, CollectiveRecord& record) {
    const Slot nothing{};
    if (std::memcmp(&slot, &nothing, sizeof slot) == 0) return SlotKind::empty;
    if (slot.begin_check != begin_check(slot) || slot.sequence == 0 || !is_collective_op(slot.op) ||
        !is_element_type(slot.element))
        return SlotKind::torn;
    record = {slot.sequence,
              slot.step,
              static_cast<CollectiveOp>(slot.op),
              static_cast<ElementType>(slot.element),
              slot.count,
              slot.begun_ns,
              slot.end_check == end_check(slot) ? slot.finished_ns : 0};
    return SlotKind::whole;
}

}  // namespace

bool is_collective_op(uint8_t value) {
    return value >= 1 && value < op_names.size();
}

bool is_element_type(uint8_t value) {
    return value >= 1 && value < element_names.size();
}

std::string_view op_name(CollectiveOp op) {
    const auto value = static_cast<uint8_t>(op);
    return op_names[is_collective_op(value) ? value : 0];
}

std::string_view element_name(ElementType element) {
    const auto value = static_cast<uint8_t>(element);
    return element_names[is_element_type(value) ? value : 0];
}

std::string describe_call(const CollectiveRecord& record) {
    if (record.op == CollectiveOp::barrier) return "barrier";
    return fmt::format("{} of {} {}", op_name(record.op), record.count, element_name(record.element));
}

std::string describe(const CollectiveRecord& record) {
    return fmt::format("collective {} ({}, step {})", record.sequence, describe_call(record), record.step);
}

std::string collective_log_path(const std::string& run_directory, int rank) {
    return io::join_path(run_directory, fmt::format("ranks/rank_{}.log", rank));
}

CollectiveLog::CollectiveLog(const std::string& path, int rank, int ranks) {
    io::make_directories(io::parent_path(path));
    if (io::kind_of(path, io::Links::refuse) == io::PathKind::file) io::rename_path(path, path + ".previous");
    const int fd = ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644);
    require(fd >= 0, ExitCode::disk, "cannot create {}: {}", path, std::strerror(errno));
    // Without allocated space, a full disk would raise SIGBUS in the middle of a step.
    int reason = ::posix_fallocate(fd, 0, file_bytes);
    void* map = MAP_FAILED;
    if (reason == 0) {
        map = ::mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        reason = errno;
    }
    ::close(fd);
    require(map != MAP_FAILED, ExitCode::disk, "cannot map {}: {}", path, std::strerror(reason));
    map_ = static_cast<unsigned char*>(map);
    Header header{};
    std::memcpy(header.magic, magic, sizeof magic);
    header.slots = collective_slots;
    header.slot_bytes = sizeof(Slot);
    header.rank = rank;
    header.ranks = ranks;
    header.process = ::getpid();
    header.started_ns = now_ns();
    header.check = xxh64(&header, offsetof(Header, check));
    std::memcpy(map_, &header, sizeof header);
}

CollectiveLog::~CollectiveLog() {
    ::munmap(map_, file_bytes);
}

void CollectiveLog::set_step(int64_t step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
}

void CollectiveLog::set_busy(const std::string& what) {
    const std::lock_guard lock(mutex_);
    busy_ = what.substr(0, most_busy_bytes);
}

uint64_t CollectiveLog::begin(CollectiveOp op, ElementType element, uint64_t count) {
    const std::lock_guard lock(mutex_);
    const uint64_t sequence = ++begun_;
    Slot& slot = slot_of(map_, sequence);
    slot.sequence = sequence;
    slot.step = step_;
    slot.count = count;
    slot.begun_ns = now_ns();
    slot.op = static_cast<uint8_t>(op);
    slot.element = static_cast<uint8_t>(element);
    publish(slot.begin_check, begin_check(slot));
    return sequence;
}

void CollectiveLog::finish(uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    check(sequence > finished_ && sequence <= begun_ && !finished_early_.contains(sequence),
          "collective {} is not one that is under way ({} begun, {} finished)", sequence, begun_, finished_);
    Slot& slot = slot_of(map_, sequence);
    if (slot.sequence == sequence) {
        slot.finished_ns = now_ns();
        publish(slot.end_check, end_check(slot));
    }
    finished_early_.insert(sequence);
    while (finished_early_.erase(finished_ + 1) == 1) ++finished_;
}

CollectiveState CollectiveLog::state() const {
    const std::lock_guard lock(mutex_);
    CollectiveState state{step_, begun_, finished_, {}, busy_};
    const uint64_t oldest = begun_ > collective_slots ? begun_ - collective_slots + 1 : 1;
    for (uint64_t sequence = oldest; sequence <= begun_; ++sequence) {
        CollectiveRecord record;
        if (read_slot(slot_of(map_, sequence), record) == SlotKind::whole) state.recent.push_back(record);
    }
    return state;
}

CollectiveLogContents read_collective_log(const std::string& path) {
    const std::string bytes = io::read_file(path, file_bytes, io::Links::follow);
    Header header{};
    require(bytes.size() == file_bytes, ExitCode::data, "{} has {} bytes; a log of collectives has {}", path,
            bytes.size(), file_bytes);
    std::memcpy(&header, bytes.data(), sizeof header);
    const bool ours = std::memcmp(header.magic, magic, sizeof magic) == 0 &&
                      header.slots == collective_slots && header.slot_bytes == sizeof(Slot) &&
                      header.check == xxh64(&header, offsetof(Header, check));
    require(ours, ExitCode::data, "{} is not a log of collectives, or its header is damaged", path);
    CollectiveLogContents contents{header.rank, header.ranks, header.process, header.started_ns, {}, 0};
    for (int i = 0; i < collective_slots; ++i) {
        Slot slot;
        std::memcpy(&slot, bytes.data() + sizeof header + static_cast<size_t>(i) * sizeof slot, sizeof slot);
        CollectiveRecord record;
        const SlotKind kind = read_slot(slot, record);
        if (kind == SlotKind::empty) continue;
        if (kind == SlotKind::whole && (record.sequence - 1) % collective_slots == static_cast<uint64_t>(i)) {
            contents.records.push_back(record);
        } else {
            ++contents.torn;
        }
    }
    std::sort(contents.records.begin(), contents.records.end(),
              [](const CollectiveRecord& a, const CollectiveRecord& b) { return a.sequence < b.sequence; });
    return contents;
}

}  // namespace longreach::ranks
