#include "commands/commands.h"
namespace longreach {
void add_data_command(CLI::App&, Action&) {}
}  // namespace longreach
