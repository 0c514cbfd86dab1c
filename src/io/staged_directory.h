// A directory that is replaced as a whole.
//
//     NAME                      what readers see
//     .NAME.longreach/          while a command writes NAME; locked by it
//       next/                   the new directory; after the exchange, the old one
//       next/.unfinished        as long as files are being written
//       old/                    the old directory, on file systems that cannot exchange two entries
//
// The new directory is written to `next` and exchanged with NAME in one step, so that a reader finds the old one or the
// new one, whole. Then the files of the old one go that this program wrote; whatever else it held moves to the new one.
// If the process ends at any moment before that is done, the next StagedDirectory of NAME finishes it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/file.h"

namespace longreach::io {

// Paths, relative to a directory, of the files in it that this program wrote, in the order in which they may go.
using OwnFiles = std::function<std::vector<std::string>(const std::string& directory)>;

class StagedDirectory {
  public:
    // Error(ExitCode::locked) if another process writes this directory.
    StagedDirectory(const std::string& target, OwnFiles own, Disk& disk = Disk::system());
    ~StagedDirectory();  // without publish(), NAME is as it was
    StagedDirectory(const StagedDirectory&) = delete;
    StagedDirectory& operator=(const StagedDirectory&) = delete;

    const std::string& path() const { return next_; }  // to be filled
    // Exchanges the two and clears the old one. Error(ExitCode::usage) if a file that this program did not write would
    // have to make room for a new one. Returns the paths of the others, which stay.
    std::vector<std::string> publish();

  private:
    void lock();
    void recover();
    void settle(const std::string& old);

    std::string target_, stage_, next_, old_;
    OwnFiles own_;
    Disk* disk_;
    File held_;
    bool published_ = false;
};

// Removes the files of a directory that this program wrote, and the directories that are empty then.
void remove_own_files(const std::string& directory, const OwnFiles& own, Disk& disk = Disk::system());

// Paths, relative to a directory, of what else it holds. A directory of which this program wrote nothing is one path.
std::vector<std::string> foreign_entries(const std::string& directory, const std::vector<std::string>& own);

}  // namespace longreach::io
