#include "io/checkpoint_dir.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "io/manifest.h"

namespace longreach::io {

namespace {

constexpr std::string_view prefix = "step_", temporary_mark = ".tmp.";

// The step of a final name, or nothing if `name` is not exactly what checkpoint_name makes.
std::optional<int64_t> step_of(std::string_view name) {
    if (name.substr(0, prefix.size()) != prefix) return {};
    const std::string_view digits = name.substr(prefix.size());
    if (digits.size() < 8 || digits.size() > 18) return {};
    int64_t step = 0;
    for (const char c : digits) {
        if (c < '0' || c > '9') return {};
        step = 10 * step + (c - '0');
    }
    if (checkpoint_name(step) != name) return {};
    return step;
}

std::string temporary_name(int64_t step) {
    return checkpoint_name(step) + std::string(temporary_mark) + unique_suffix();
}

void remove_unfinished(const std::string& root, Disk& disk) {
    for (const std::string& name : list_directory(root)) {
        const bool unfinished = name.find(temporary_mark) != std::string::npos &&
                                (name.starts_with(prefix) || name.starts_with("latest."));
        if (unfinished) remove_tree(join_path(root, name), disk);
    }
}

// Renames a checkpoint, then removes it: a half-removed directory never has a final name.
void remove_checkpoint(const std::string& root, int64_t step, Disk& disk) {
    const std::string doomed = join_path(root, temporary_name(step));
    rename_path(join_path(root, checkpoint_name(step)), doomed, disk);
    remove_tree(doomed, disk);
}

void prune(const std::string& root, int64_t newest, const Retention& retention, Disk& disk) {
    int64_t kept = 1;  // the new one, whatever its number
    for (const int64_t step : checkpoint_steps(root)) {
        if (step == newest) continue;
        const bool pinned =
            std::find(retention.pinned.begin(), retention.pinned.end(), step) != retention.pinned.end();
        if (pinned) continue;
        if (kept < retention.keep) {
            ++kept;
        } else {
            remove_checkpoint(root, step, disk);
        }
    }
}

// A file under construction whose checksum grows with it.
class HashingSink final : public ByteSink {
  public:
    explicit HashingSink(File& file) : file_(file) {}
    using ByteSink::write;
    void write(const void* data, size_t size) override {
        hash.update(data, size);
        file_.write(data, size);
    }
    Xxh64 hash;

  private:
    File& file_;
};

uint64_t hash_of_file(const File& file, uint64_t bytes) {
    std::vector<unsigned char> buffer(static_cast<size_t>(std::min<uint64_t>(bytes, uint64_t{1} << 20)));
    Xxh64 hash;
    for (uint64_t at = 0; at < bytes;) {
        const size_t part = static_cast<size_t>(std::min<uint64_t>(bytes - at, buffer.size()));
        file.read_at(buffer.data(), part, at);
        hash.update(buffer.data(), part);
        at += part;
    }
    return hash.digest();
}

Checkpoint verify_files(const std::string& root, int64_t step, Disk& disk) {
    const std::string path = join_path(root, checkpoint_name(step));
    const std::string manifest_path = join_path(path, manifest_name);
    Checkpoint checkpoint =
        parse_manifest(read_file(manifest_path, largest_manifest, Links::refuse, disk), manifest_path);
    checkpoint.path = path;
    require(checkpoint.step == step, ExitCode::checkpoint, "{} is the manifest of step {}", manifest_path,
            checkpoint.step);
    // All sizes first, so that a truncated file is found before gigabytes are read.
    std::vector<File> files;
    for (const ManifestEntry& entry : checkpoint.files) {
        files.push_back(File::open(checkpoint.file(entry.name), Links::refuse, disk));
        const uint64_t bytes = files.back().size();
        require(bytes == entry.bytes, ExitCode::checkpoint, "{} has {} bytes, the manifest says {}",
                files.back().path(), bytes, entry.bytes);
    }
    for (size_t i = 0; i < files.size(); ++i)
        require(hash_of_file(files[i], checkpoint.files[i].bytes) == checkpoint.files[i].hash,
                ExitCode::checkpoint, "{} does not match its checksum in the manifest", files[i].path());
    return checkpoint;
}

}  // namespace

std::string checkpoint_name(int64_t step) {
    return fmt::format("{}{:08}", prefix, step);
}

bool Checkpoint::has(std::string_view name) const {
    return std::any_of(files.begin(), files.end(), [&](const ManifestEntry& e) { return e.name == name; });
}

CheckpointWriter::CheckpointWriter(std::string root, int64_t step, Disk& disk)
    : root_(std::move(root)), step_(step), disk_(&disk) {
    check(step >= 0, "a checkpoint of step {}", step);
    make_directories(root_, disk);
    remove_unfinished(root_, disk);
    const std::string path = join_path(root_, temporary_name(step));
    make_directory(path, disk);
    temporary_ = path;
}

CheckpointWriter::~CheckpointWriter() {
    if (temporary_.empty()) return;
    try {
        remove_tree(temporary_, *disk_);
    } catch (const Error&) {
        // The next writer removes it; a destructor cannot report.
    }
}

void CheckpointWriter::add(const std::string& name, uint64_t bytes,
                           const std::function<void(ByteSink& out)>& body) {
    check(!temporary_.empty(), "{} is added after the commit", name);
    check(is_checkpoint_file_name(name), "{} cannot be a file of a checkpoint", name);
    const auto same_name = [&](const ManifestEntry& e) { return e.name == name; };
    check(std::none_of(files_.begin(), files_.end(), same_name), "{} is added twice", name);
    File file = File::create(join_path(temporary_, name), *disk_);
    file.reserve(bytes);
    HashingSink sink(file);
    body(sink);
    check(sink.hash.size() == bytes, "{}: {} bytes written, {} announced", name, sink.hash.size(), bytes);
    file.sync();
    file.close();
    files_.push_back({name, bytes, sink.hash.digest()});
}

void CheckpointWriter::add_text(const std::string& name, std::string_view text) {
    add(name, text.size(), [&](ByteSink& out) { out.write(text); });
}

void CheckpointWriter::add_safetensors(const std::string& name, const SafetensorsWriter& writer,
                                       const SafetensorsWriter::Data& data) {
    add(name, writer.file_bytes(), [&](ByteSink& out) { writer.write(out, data); });
}

// Gives the finished directory its final name. An existing one of the same step is exchanged with
// it, so that the name always refers to a checkpoint.
void CheckpointWriter::publish(const std::string& final_path) {
    if (kind_of(final_path, Links::refuse) == PathKind::missing) {
        rename_path(temporary_, final_path, *disk_);
        temporary_.clear();
    } else if (!exchange_paths(temporary_, final_path, *disk_)) {
        const std::string doomed = join_path(root_, temporary_name(step_));
        rename_path(final_path, doomed, *disk_);
        rename_path(temporary_, final_path, *disk_);
        temporary_ = doomed;
    }  // else temporary_ now names the old one, which the destructor removes
    sync_directory(root_, *disk_);
}

Checkpoint CheckpointWriter::commit(const Retention& retention, const Notice& notice) {
    check(!temporary_.empty(), "a checkpoint is committed twice");
    const std::string manifest = format_manifest(step_, files_);
    File file = File::create(join_path(temporary_, manifest_name), *disk_);
    file.write(manifest);
    file.sync();
    file.close();
    sync_directory(temporary_, *disk_);
    publish(join_path(root_, checkpoint_name(step_)));
    // The checkpoint is durable. Later failures cannot undo that.
    const auto attempt = [&](const char* what, auto action) {
        try {
            action();
        } catch (const Error& error) {
            notice(fmt::format("checkpoint {} is saved, but {}: {}", checkpoint_name(step_), what,
                               error.what()));
        }
    };
    attempt("the file latest could not be replaced", [&] {
        write_file_atomically(join_path(root_, "latest"), checkpoint_name(step_) + "\n", *disk_);
    });
    Checkpoint checkpoint;
    try {
        checkpoint = verify_checkpoint(root_, step_, *disk_);
    } catch (const Error& error) {
        // What was read is not what was just written: not the caller's fault.
        throw Error(ExitCode::disk, error.what(), error.hint());
    }
    attempt("an older one could not be removed", [&] { prune(root_, step_, retention, *disk_); });
    return checkpoint;
}

bool is_checkpoint_name(std::string_view name) {
    const size_t dot = name.find('.');
    if (!step_of(name.substr(0, dot))) return false;
    const std::string_view ending = dot == std::string_view::npos ? "" : name.substr(dot);
    return ending.empty() || ending.starts_with(".bad") || ending.starts_with(temporary_mark);
}

std::vector<int64_t> checkpoint_steps(const std::string& root) {
    std::vector<int64_t> steps;
    if (kind_of(root, Links::follow) == PathKind::missing) return steps;
    for (const std::string& name : list_directory(root)) {
        const std::optional<int64_t> step = step_of(name);
        if (step && kind_of(join_path(root, name), Links::refuse) == PathKind::directory)
            steps.push_back(*step);
    }
    std::sort(steps.rbegin(), steps.rend());
    return steps;
}

Checkpoint verify_checkpoint(const std::string& root, int64_t step, Disk& disk, const Examine& examine) {
    try {
        Checkpoint checkpoint = verify_files(root, step, disk);
        if (examine) examine(checkpoint);
        return checkpoint;
    } catch (const Error& error) {
        // A failing disk or device says nothing about the files; values that are not finite are
        // what the run saved.
        const bool files = error.code() != ExitCode::disk && error.code() != ExitCode::device &&
                           error.code() != ExitCode::peer && error.code() != ExitCode::numerics;
        if (!files) throw;
        throw Error(ExitCode::checkpoint, error.what(), error.hint());
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        throw Error(ExitCode::checkpoint,
                    fmt::format("{}: {}", join_path(root, checkpoint_name(step)), error.what()));
    }
}

std::optional<Checkpoint> newest_checkpoint(const std::string& root, Damaged damaged, const Notice& notice,
                                            Disk& disk, const Examine& examine) {
    const std::vector<int64_t> steps = checkpoint_steps(root);
    for (const int64_t step : steps) {
        const std::string path = join_path(root, checkpoint_name(step));
        try {
            return verify_checkpoint(root, step, disk, examine);
        } catch (const Error& error) {
            if (error.code() == ExitCode::device || error.code() == ExitCode::peer ||
                error.code() == ExitCode::numerics)
                throw;
            // A disk failure may be temporary: only files that were read and found wrong are renamed.
            if (damaged == Damaged::leave || error.code() != ExitCode::checkpoint) {
                notice(fmt::format("checkpoint {} is not usable: {}", path, error.what()));
                continue;
            }
            std::string bad = path + ".bad";
            if (kind_of(bad, Links::refuse) != PathKind::missing) bad += "." + unique_suffix();
            rename_path(path, bad, disk);
            notice(fmt::format("checkpoint {} is damaged and was renamed to {}: {}", path, base_name(bad),
                               error.what()));
        }
    }
    require(steps.empty(), ExitCode::checkpoint, "none of the {} checkpoints in {} is usable", steps.size(),
            root);
    return {};
}

}  // namespace longreach::io
