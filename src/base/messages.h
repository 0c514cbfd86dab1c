// Messages of commands, which go to standard error: what a command found or did, not what it was asked for.
#pragma once

#include <string_view>

namespace longreach {

// As --log-level orders them. Errors that end a command are always printed (print_error).
enum class MessageLevel { info, warning, error };

// The least level that is printed from now on; also of the console of a run, but not of its log.txt.
void print_from(MessageLevel level);
MessageLevel printed_from();

// "warning: ..." and the like; info has no prefix. The text ends without a newline.
void print_message(MessageLevel level, std::string_view text);

}  // namespace longreach
