// Lines and fields of CSV, for tests of what was written.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace longreach::test {

inline std::vector<std::string> lines_of(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

// Fields of one CSV line, quotes undone.
inline std::vector<std::string> fields_of(const std::string& line) {
    std::vector<std::string> fields = {""};
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
        if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"')
            fields.back() += line[i++];
        else if (line[i] == '"')
            quoted = !quoted;
        else if (line[i] == ',' && !quoted)
            fields.emplace_back();
        else
            fields.back() += line[i];
    }
    return fields;
}

}  // namespace longreach::test
