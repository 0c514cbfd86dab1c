// manifest.json of a checkpoint: text and back. It carries a checksum of itself.
#pragma once

#include <string>
#include <string_view>

#include "io/checkpoint_dir.h"

namespace longreach::io {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr uint64_t largest_manifest = uint64_t{1} << 20;  // bytes

std::string format_manifest(int64_t step, const std::vector<ManifestEntry>& files);

// `path` is for messages. Fills step, files and manifest_hash; Error(ExitCode::checkpoint) otherwise.
Checkpoint parse_manifest(const std::string& text, const std::string& path);

// Whether a manifest may name this file: letters, digits and . _ -, not beginning with a dot,
// and not the manifest's own.
bool is_checkpoint_file_name(std::string_view name);

}  // namespace longreach::io
