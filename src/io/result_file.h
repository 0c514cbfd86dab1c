// Results that a command writes where its user says. Without --replace, a file
// there that this program did not write stays.
#pragma once

#include <string>
#include <string_view>

namespace longreach::io {

// Whether this program wrote the file: it holds one of the marks that pages, pictures and documents of this program hold.
bool is_result(const std::string& path);

// Error(ExitCode::usage) if writing `path` would replace something that this program did not write. Where files like
// `like` have no marks, a file counts as written by it if its first line is the same, numbers apart.
void require_replaceable(const std::string& path, bool replace, std::string_view like = {});

// Writes it atomically, after require_replaceable.
void write_result(const std::string& path, std::string_view content, bool replace);

}  // namespace longreach::io
