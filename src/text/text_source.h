// Documents from text files, directories, JSONL files and standard input, one after the other and without loading
// them into memory. Files that gzip or Zstandard packed are read as what they unpack to.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace longreach::text {

struct SourceFile {
    std::string path;
    // Relative to the input it was found under, without the ending of an archive: the same on every machine.
    std::string name;
    uint64_t bytes = 0;           // of the file
    bool from_directory = false;  // found by walking, not named by the user
    bool packed = false;          // the text is longer
};

struct SourceOptions {
    std::vector<std::string> inputs = {};  // files and directories; "-": standard input
    bool lines = false;                    // every input is JSONL, whatever its name
    std::vector<std::string> extensions =
        {};  // only names that end in these (".h") inside directories; empty: all
    std::vector<std::string> exclude = {};  // inside directories: shell patterns of relative paths left out
    std::string text_field = "text";        // of the objects in *.jsonl
    bool strip_licence = false;  // drop leading C and C++ comments up to the last that mentions a licence
};

// Files left out by `exclude`.
struct Excluded {
    uint64_t files = 0, bytes = 0;
    std::vector<uint64_t> matches = {};  // of each pattern: files whose name it matches
};

// The files of the inputs: inputs in the order given, directories walked in byte order of the names.
// Links inside directories are not followed.
std::vector<SourceFile> find_sources(const SourceOptions& options, Excluded& excluded);

// Receives documents: begin, then pieces, then end. `name` is unique and the same on every machine; `bytes`
// is the size of the document before a licence is dropped, or any number above room(); 0 where it is not known.
class DocumentSink {
  public:
    virtual ~DocumentSink() = default;
    virtual bool begin(const std::string& name, uint64_t bytes) = 0;  // false: no more documents are needed
    // Bytes that are still taken. What an archive unpacks to is measured up to there, so that begin() knows its size;
    // standard input, which cannot be read twice, is cut there.
    virtual uint64_t room() const { return std::numeric_limits<uint64_t>::max(); }
    virtual void text(std::string_view piece) = 0;
    virtual void end() = 0;
    // `bytes` of the file that is being read have been consumed, packed as it is.
    virtual void at(uint64_t bytes) { static_cast<void>(bytes); }
};

enum class SourceOutcome { done, binary, stopped };

// Sends the documents of one file: each line of a *.jsonl, otherwise the whole file. A file found by walking
// that holds a NUL in its first 8 KiB is `binary` and sends nothing. Documents without text are left out.
SourceOutcome read_source(const SourceFile& source, const SourceOptions& options, DocumentSink& sink);

// Where the text begins after the licence: after the last leading comment that mentions a licence or
// a copyright, and after the blank lines that follow. 0 if none does.
size_t licence_end(std::string_view text);

}  // namespace longreach::text
