#include "text/shard_output.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "data/shard_format.h"

namespace longreach::text {

namespace {

constexpr const char* staging_name = "unfinished.new";
constexpr const char* lock_name = "unfinished.lock";  // where the file system locks no directories
constexpr uint64_t largest_kept = uint64_t{256} << 20;

bool is_own_name(std::string_view name) {
    return name == data::Unfinished::name || name == TextRequest::name || name == data::ShardList::name;
}

bool is_read_as_shard(std::string_view name) {
    return name.ends_with(".bin") || name.ends_with(".idx");
}

bool has_own_format(const std::string& path) {
    return io::kind_of(path, io::Links::refuse) == io::PathKind::file &&
           data::is_longreach_shard(data::FileHead::read(io::File::open(path, io::Links::refuse)));
}

uint64_t complete_of(const data::Unfinished& progress, const data::ShardName& shard) {
    return (shard.split == "val" ? progress.val : progress.train).shards;
}

void take_lock(io::File& file, const std::string& directory, bool& unsupported) {
    const io::File::Lock lock = file.lock();
    unsupported = lock == io::File::Lock::unsupported;
    if (lock == io::File::Lock::busy)
        throw Error(ExitCode::locked,
                    fmt::format("{} is in use by another process that writes shards", directory),
                    "wait for it, or name another directory");
}

}  // namespace

ShardOutput::ShardOutput(OutputOptions options)
    : options_(std::move(options)),
      disk_(*options_.disk),
      staging_(io::join_path(options_.directory, staging_name)),
      place_(options_.directory) {
    require(!options_.directory.empty(), ExitCode::usage, "no output directory is named");
    io::make_directories(options_.directory, disk_);
    lock();
    settle_publication();
    decide();
    try {
        begin();
    } catch (const Error&) {
        abandon();
        throw;
    }
}

ShardOutput::~ShardOutput() {
    if (!finished_) abandon();
}

void ShardOutput::lock() {
    bool unsupported = false;
    directory_lock_ = io::File::open_directory(options_.directory, disk_);
    take_lock(directory_lock_, options_.directory, unsupported);
    if (!unsupported) return;
    const std::string path = io::join_path(options_.directory, lock_name);
    file_lock_ = io::File::open_or_create(path, io::Writes::placed, disk_);
    take_lock(file_lock_, options_.directory, unsupported);
}

bool ShardOutput::continues(const data::Unfinished& unfinished) const {
    return unfinished.request != 0 && unfinished.request == options_.request.hash;
}

// Completes the move that an earlier call began.
void ShardOutput::settle_publication() {
    std::optional<data::Unfinished> here = data::Unfinished::read(options_.directory);
    if (!here || !here->publishing) return;
    publish();
    here->publishing = false;
    if (continues(*here)) {
        here->write(options_.directory, disk_);
    } else {
        io::remove_file(data::Unfinished::path_in(options_.directory), disk_);
    }
}

void ShardOutput::decide() {
    listed_ = data::ShardList::read(options_.directory);
    const std::optional<data::Unfinished> here = data::Unfinished::read(options_.directory);
    if (here && !continues(*here) && !options_.replace) refuse_other();
    const bool occupied = check_shards(here);
    check_staging();
    check_kept();
    if (!here && occupied) place_ = staging_;
    const std::optional<data::Unfinished> earlier = here ? here : data::Unfinished::read(place_);
    resumes_ = earlier && continues(*earlier);
    progress_ = resumes_ ? *earlier : data::Unfinished{options_.request.hash};
    const uint64_t free = io::free_bytes(options_.directory);
    if (!resumes_ && options_.bytes > free)
        throw Error(ExitCode::disk,
                    fmt::format("about {} are needed in {}, but only {} are free",
                                human_bytes(static_cast<int64_t>(options_.bytes)), options_.directory,
                                human_bytes(static_cast<int64_t>(free))),
                    "free some space, limit the total, or write elsewhere");
}

void ShardOutput::refuse_other() const {
    const std::string changed = options_.request.changed_since(options_.directory);
    if (!changed.empty())
        throw Error(ExitCode::data,
                    fmt::format("{} changed since the unfinished shards in {} were begun", changed,
                                options_.directory),
                    "put the former text back, with its modification time, or start again with --replace");
    throw Error(ExitCode::usage,
                fmt::format("{} holds the unfinished shards of other texts or options", options_.directory),
                "repeat that call to complete them, or allow replacing");
}

// Whether the directory holds shards. Refuses those that must stay and would be read as part of the new data set.
bool ShardOutput::check_shards(const std::optional<data::Unfinished>& here) const {
    const std::string& directory = options_.directory;
    bool any = false;
    for (const std::string& name : io::list_directory(directory)) {
        if (!is_read_as_shard(name)) continue;
        any = true;
        const data::ListedFile* listed = listed_.find(name);
        const bool ours = listed != nullptr && listed->is_in(directory);
        const std::optional<data::ShardName> shard = data::ShardName::parse(name);
        // At most one shard of a split is complete and not yet in the marker.
        const bool unfinished = here && shard && shard->number <= complete_of(*here, *shard) &&
                                has_own_format(io::join_path(directory, name));
        if (unfinished || (ours && (here || options_.replace))) continue;
        if (ours)
            throw Error(ExitCode::usage, fmt::format("{} already holds token shards ({})", directory, name),
                        "name another directory, or allow replacing");
        throw Error(ExitCode::usage,
                    fmt::format("{} already holds token shards ({}) that its {} does not list", directory,
                                name, data::ShardList::name),
                    "name another directory, or move them away: they would be read with the new ones");
    }
    return any;
}

void ShardOutput::check_staging() const {
    const io::PathKind kind = io::kind_of(staging_, io::Links::refuse);
    if (kind == io::PathKind::missing) return;
    require(kind == io::PathKind::directory, ExitCode::usage,
            "{} is not a directory that this program made; move it away", staging_);
    for (const std::string& name : io::list_directory(staging_)) {
        const std::string_view target = io::target_of_temporary(name);
        const std::string_view base = target.empty() ? std::string_view(name) : target;
        require(data::ShardName::parse(base) || data::is_tokenizer_file(base) || is_own_name(base),
                ExitCode::usage, "{} holds {}, which is not of this program; move it away", staging_,
                shown(name));
    }
}

// A tokenizer that was in the directory before stays as it is.
void ShardOutput::check_kept() {
    std::erase_if(options_.kept, [&](const data::KeptFile& kept) {
        const std::string path = io::join_path(options_.directory, kept.name);
        const io::PathKind kind = io::kind_of(path, io::Links::refuse);
        const data::ListedFile* listed = listed_.find(kept.name);
        if (kind == io::PathKind::missing || (listed != nullptr && listed->is_in(options_.directory)))
            return false;
        const bool same = io::kind_of(path, io::Links::follow) == io::PathKind::file &&
                          io::read_file(path, largest_kept, io::Links::follow) == kept.content;
        if (!same)
            throw Error(ExitCode::usage,
                        fmt::format("{} already holds another {}", options_.directory, kept.name),
                        "name another directory, or move the file away");
        return true;
    });
}

void ShardOutput::begin() {
    begun_ = true;
    if (!(is_staged() && resumes_)) discard(staging_);
    if (!is_staged() && !resumes_) discard(options_.directory);
    remove_temporaries(place_);
    if (!resumes_) {
        if (is_staged()) io::make_directory(place_, disk_);
        if (options_.request.hash != 0) options_.request.write(place_, disk_);
        return progress_.write(place_, disk_);
    }
    for (const std::string& name : io::list_directory(place_))
        if (const std::optional<data::ShardName> shard = data::ShardName::parse(name);
            shard && shard->number >= complete_of(progress_, *shard))
            io::remove_file(io::join_path(place_, name), disk_);
}

void ShardOutput::record(std::string_view split, const data::SplitProgress& progress) {
    (split == "val" ? progress_.val : progress_.train) = progress;
    progress_.write(place_, disk_);
}

std::vector<std::string> ShardOutput::finish(data::SplitResult& train, data::SplitResult& val) {
    const std::string& directory = options_.directory;
    if (is_staged()) check_shards({});  // those that came meanwhile
    data::ShardList list;
    for (data::SplitResult* split : {&train, &val})
        for (size_t i = 0; i < split->shards.size(); ++i) {
            const std::string name = io::base_name(split->shards[i]);
            list.files.push_back({name, split->fingerprints[i]});
            split->shards[i] = io::join_path(directory, name);
        }
    for (const data::KeptFile& kept : options_.kept) list.files.push_back({kept.name, xxh64(kept.content)});
    if (!is_staged()) remove_outdated(list);
    list.write(place_, disk_);
    for (const data::KeptFile& kept : options_.kept)
        io::write_file_atomically(io::join_path(place_, kept.name), kept.content, disk_);
    finished_ = true;  // from here on only the same call can complete it
    if (is_staged()) {
        data::Unfinished publication = progress_;
        publication.publishing = true;
        publication.write(directory, disk_);
        publish();
    }
    remove_temporaries(directory);
    io::remove_file(io::join_path(directory, TextRequest::name), disk_);
    io::remove_file(data::Unfinished::path_in(directory), disk_);
    io::sync_directory(directory, disk_);
    std::vector<std::string> others;
    if (!options_.replace) return others;
    for (const std::string& name : io::list_directory(directory))
        if (list.find(name) == nullptr && !is_own_name(name) && name != lock_name) others.push_back(name);
    return others;
}

// Removes what the list in the directory has and `list` has not.
void ShardOutput::remove_outdated(const data::ShardList& list) {
    for (const data::ListedFile& file : data::ShardList::read(options_.directory).files)
        if (list.find(file.name) == nullptr && file.is_in(options_.directory))
            io::remove_file(io::join_path(options_.directory, file.name), disk_);
}

// Each step may have been done before: the list moves last, so it says what to move until all is.
void ShardOutput::publish() {
    const std::string& directory = options_.directory;
    const std::string list_path = io::join_path(staging_, data::ShardList::name);
    if (io::kind_of(list_path, io::Links::refuse) == io::PathKind::file) {
        const data::ShardList list = data::ShardList::read(staging_);
        for (const data::ListedFile& file : list.files) {
            const std::string from = io::join_path(staging_, file.name);
            if (io::kind_of(from, io::Links::refuse) == io::PathKind::missing) continue;
            io::rename_path(from, io::join_path(directory, file.name), disk_);
        }
        io::sync_directory(directory, disk_);
        remove_outdated(list);
        io::rename_path(list_path, io::join_path(directory, data::ShardList::name), disk_);
        io::sync_directory(directory, disk_);
    }
    discard(staging_);
}

void ShardOutput::discard(const std::string& directory) {
    if (io::kind_of(directory, io::Links::refuse) == io::PathKind::missing) return;
    const bool whole = directory == staging_;
    const std::optional<data::Unfinished> marker = data::Unfinished::read(directory);
    for (const std::string& name : io::list_directory(directory)) {
        const std::optional<data::ShardName> shard = data::ShardName::parse(name);
        const bool unfinished = shard && (whole || (marker && shard->number <= complete_of(*marker, *shard)));
        if (unfinished || (whole && (data::is_tokenizer_file(name) || name == data::ShardList::name)))
            io::remove_file(io::join_path(directory, name), disk_);
    }
    remove_temporaries(directory);
    io::remove_file(io::join_path(directory, TextRequest::name), disk_);
    io::remove_file(data::Unfinished::path_in(directory), disk_);
    if (whole) io::remove_tree(directory, disk_);
}

void ShardOutput::remove_temporaries(const std::string& directory) {
    if (io::kind_of(directory, io::Links::follow) != io::PathKind::directory) return;
    for (const std::string& name : io::list_directory(directory)) {
        const std::string_view target = io::target_of_temporary(name);
        const bool ours = data::ShardName::parse(target) || is_own_name(target) ||
                          (directory == staging_ && data::is_tokenizer_file(target));
        if (ours) io::remove_file(io::join_path(directory, name), disk_);
    }
}

// What is complete stays if the same call can continue it. What the disk refuses to remove stays marked.
void ShardOutput::abandon() {
    const bool useful = progress_.train.shards + progress_.val.shards > 0 && progress_.request != 0;
    if (!begun_ || useful) return;
    try {
        discard(place_);
    } catch (const Error&) {
    }
}

std::string name_others(const std::vector<std::string>& others) {
    if (others.empty()) return {};
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min<size_t>(others.size(), 8); ++i) names.push_back(shown(others[i]));
    const std::string more =
        others.size() > names.size() ? fmt::format(" and {} more", others.size() - names.size()) : "";
    return fmt::format("not of this program, left as they are: {}{}\n", join(names, ", "), more);
}

}  // namespace longreach::text
