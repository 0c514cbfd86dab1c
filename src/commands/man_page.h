// The manual as pages for man(1), made of the commands and the list of config fields.
#pragma once

#include <string>
#include <vector>

#include "commands/command_line.h"
#include "config/field_info.h"

namespace longreach::commands {

struct ManPage {
    std::string topic;  // "" for the program, "train", "fields"
    int section = 1;
    std::string text;  // roff, macros of man(7)

    std::string file() const;  // "longreach-train.1"
};

// The program, each of its commands, the fields of a config.
std::vector<ManPage> man_pages(const CommandInfo& program, const config::FieldInfo& config,
                               const std::string& version);

}  // namespace longreach::commands
