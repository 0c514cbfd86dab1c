#include "io/record_file.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace longreach::io {

RecordFile::RecordFile(const std::string& path, int64_t bytes, std::string_view header, Disk& disk)
    : open_(std::make_shared<Open>()) {
    open_->file = File::open_or_create(path, Writes::placed, disk);
    const uint64_t present = open_->file.size();
    require(present >= static_cast<uint64_t>(bytes), ExitCode::disk,
            "{} has {} bytes, but the checkpoint was made when it had {}", path, present, bytes);
    open_->file.truncate(static_cast<uint64_t>(bytes));
    open_->bytes = bytes;
    if (bytes == 0 && !header.empty()) append(header);
}

void RecordFile::append(std::string_view line) {
    // Writing past the end would fill the part that was cut off with zeros.
    if (!whole())
        throw Error(ExitCode::disk, fmt::format("{} was cut while the run used it", path()),
                    "the checkpoints hold its lines: the same command resumes and restores it");
    std::string text(line);
    text += '\n';
    open_->file.write_at(text.data(), text.size(), static_cast<uint64_t>(open_->bytes));
    open_->bytes += static_cast<int64_t>(text.size());
}

void RecordFile::sync() {
    open_->file.sync();
}

void RecordFile::copy_to(ByteSink& out, int64_t bytes) const {
    std::vector<char> buffer(static_cast<size_t>(std::min<int64_t>(bytes, 1 << 20)));
    for (int64_t at = 0; at < bytes;) {
        const auto part = static_cast<size_t>(std::min<int64_t>(bytes - at, std::ssize(buffer)));
        open_->file.read_at(buffer.data(), part, static_cast<uint64_t>(at));
        out.write(buffer.data(), part);
        at += static_cast<int64_t>(part);
    }
}

}  // namespace longreach::io
