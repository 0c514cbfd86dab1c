// The newest 64 collectives of a rank, in a file that outlives the process.
//
// The file is mapped into memory: writing a record is a few stores, which the kernel keeps however the
// process ends (SIGKILL included; only a crash of the machine may lose them). A reader finds every record
// complete, marked as torn, or absent.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace longreach::ranks {

// The values are part of the file format: append, never renumber.
enum class CollectiveOp : uint8_t {
    all_reduce = 1,
    reduce_scatter = 2,
    all_gather = 3,
    broadcast = 4,
    all_to_all = 5,
    send = 6,
    receive = 7,
    barrier = 8,
};
enum class ElementType : uint8_t { f32 = 1, bf16 = 2, f16 = 3, f64 = 4, i32 = 5, i64 = 6, u8 = 7 };
std::string_view op_name(CollectiveOp op);           // "?" if unknown
std::string_view element_name(ElementType element);  // "?" if unknown
bool is_collective_op(uint8_t value);
bool is_element_type(uint8_t value);

struct CollectiveRecord {
    uint64_t sequence = 0;  // 1 for the first collective of the process
    int64_t step = 0;
    CollectiveOp op = CollectiveOp::barrier;
    ElementType element = ElementType::u8;
    uint64_t count = 0;       // elements this rank passes
    int64_t begun_ns = 0;     // since 1970
    int64_t finished_ns = 0;  // 0: not finished

    bool same_call(const CollectiveRecord& other) const {
        return op == other.op && element == other.element && count == other.count;
    }
};
std::string describe_call(const CollectiveRecord& record);  // "all_reduce of 1024 bf16"
std::string describe(const CollectiveRecord& record);  // "collective 7 (all_reduce of 1024 bf16, step 3)"

// The progress of a rank.
struct CollectiveState {
    int64_t step = 0;
    uint64_t begun = 0;                    // newest sequence begun
    uint64_t finished = 0;                 // all collectives up to this one have finished
    std::vector<CollectiveRecord> recent;  // the newest records, oldest first
    std::string busy = {};                 // while others may wait for it: "saving a checkpoint"
};

constexpr size_t most_busy_bytes = 128;
constexpr int collective_slots = 64;

std::string collective_log_path(const std::string& run_directory, int rank);  // RUN/ranks/rank_2.log

// Any thread may call any member.
class CollectiveLog {
  public:
    // Creates the directory and the file; a file of an earlier start is renamed to PATH.previous.
    CollectiveLog(const std::string& path, int rank, int ranks);
    ~CollectiveLog();
    CollectiveLog(const CollectiveLog&) = delete;
    CollectiveLog& operator=(const CollectiveLog&) = delete;

    void set_step(int64_t step);  // the steps completed; copied into every record begun from now on
    void set_busy(const std::string& what);  // "": not busy; sent with the heartbeats, not in the file
    uint64_t begin(CollectiveOp op, ElementType element, uint64_t count);  // returns the sequence
    void finish(uint64_t sequence);  // in any order; a record no longer in the ring is only counted
    CollectiveState state() const;

  private:
    mutable std::mutex mutex_;
    unsigned char* map_ = nullptr;
    int64_t step_ = 0;
    std::string busy_;
    uint64_t begun_ = 0, finished_ = 0;
    std::set<uint64_t> finished_early_;  // those beyond finished_ + 1
};

struct CollectiveLogContents {
    int rank = 0, ranks = 0;
    int64_t process = 0;                    // its id
    int64_t started_ns = 0;                 // since 1970
    std::vector<CollectiveRecord> records;  // in the order of their sequence
    int torn = 0;                           // slots whose write was interrupted, or that are damaged
};

// Reads the log of a rank, even while it is being written. Error(data) if the file is not such a log.
CollectiveLogContents read_collective_log(const std::string& path);

}  // namespace longreach::ranks
