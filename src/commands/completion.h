// What a shell offers for a command line that is being typed, and the scripts that ask for it.
#pragma once

#include <string>
#include <vector>

#include "commands/command_line.h"
#include "config/field_info.h"

namespace longreach::commands {

struct Completion {
    struct Word {
        std::string text, help;
    };
    std::vector<Word> words;  // that begin like the word that is being typed
    bool files = false;       // the shell offers files; `words` is empty
    bool unfinished = false;  // more of each word follows ("model." of model.width=64): no space after it
};

// The last of `words` is being typed and may be empty; the program's name is not among them. `config` has the
// fields that --set takes.
Completion complete(const CommandInfo& program, const config::FieldInfo& config,
                    const std::vector<std::string>& words);

// "words", "stems" or "files" on the first line, then a line for each word: text, tab, help.
std::string to_text(const Completion& completion);

// For bash, zsh or fish; calls `longreach completion words`.
std::string completion_script(const std::string& shell);

}  // namespace longreach::commands
