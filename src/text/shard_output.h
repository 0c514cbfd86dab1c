// The directory that `data tokenize` and `data synth` fill with shards.
//
// Shards are written into the directory itself, or, where they replace others, into DIRECTORY/unfinished.new, from where
// finish() moves them. Until then unfinished.json in their directory marks the new shards, and says where the same call
// continues. shards.json lists the files of a complete data set; only what it or the marker names is ever removed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/shard_list.h"
#include "data/shard_set.h"
#include "text/text_request.h"
#include "data/tokenizer_file.h"
#include "data/unfinished.h"
#include "io/file.h"

namespace longreach::text {

struct OutputOptions {
    std::string directory;
    bool replace = false;      // the complete shards in it, or unfinished ones of another request
    uint64_t bytes = 0;        // about what will be written
    TextRequest request = {};  // hash 0: an unfinished directory cannot be continued
    std::vector<data::KeptFile> kept = {};  // kept with the shards
    io::Disk* disk = &io::Disk::system();
};

class ShardOutput {
  public:
    // Locks the directory, or Error(ExitCode::locked), and checks everything before it changes anything.
    explicit ShardOutput(OutputOptions options);
    // Without finish(): what is complete stays to be continued; if nothing is, or it cannot be, nothing stays.
    ~ShardOutput();
    ShardOutput(const ShardOutput&) = delete;
    ShardOutput& operator=(const ShardOutput&) = delete;

    const std::string& place() const { return place_; }             // where shards are to be written
    const data::Unfinished& progress() const { return progress_; }  // where to continue
    void record(std::string_view split, const data::SplitProgress& progress);  // after each complete shard

    // Makes the shards the contents of the directory and corrects their paths. Returns the names of the files in the
    // directory that are not of this program.
    std::vector<std::string> finish(data::SplitResult& train, data::SplitResult& val);

  private:
    void lock();
    void settle_publication();
    void decide();
    [[noreturn]] void refuse_other() const;
    bool check_shards(const std::optional<data::Unfinished>& here) const;
    void check_staging() const;
    void check_kept();
    void begin();
    void publish();
    void discard(const std::string& directory);  // the unfinished shards in it, or all of unfinished.new
    void remove_outdated(const data::ShardList& list);
    void remove_temporaries(const std::string& directory);
    void abandon();
    bool continues(const data::Unfinished& unfinished) const;
    bool is_staged() const { return place_ != options_.directory; }

    OutputOptions options_;
    io::Disk& disk_;
    std::string staging_, place_;
    io::File directory_lock_, file_lock_;
    data::ShardList listed_;  // of the directory, as it was found
    data::Unfinished progress_;
    bool resumes_ = false, begun_ = false, finished_ = false;
};

// A line for the console; empty if there are none.
std::string name_others(const std::vector<std::string>& others);

}  // namespace longreach::text
