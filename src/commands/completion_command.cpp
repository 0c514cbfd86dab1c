// longreach completion: what a shell offers while a command line is typed.
#include "commands/commands.h"
#include "commands/completion.h"

namespace longreach::commands {

void add_completion_command(Command& program) {
    auto typed = std::make_shared<std::vector<std::string>>();
    Command completion = program.add("completion", "Completion of commands, options and fields in a shell");
    completion.require_command();
    for (const std::string shell : {"bash", "zsh", "fish"})
        completion.add(shell, fmt::format("The script for {}; an installation has it", shell)).run([shell] {
            fmt::print("{}", completion_script(shell));
            return ExitCode::ok;
        });
    Command words = completion.add("words", "What may follow: called by the scripts");
    words.option("words", *typed, "After --: the words typed so far, the last one unfinished");
    words.run([typed](const CommandInfo& all) {
        fmt::print("{}", to_text(complete(all, config::describe<train::Experiment>(), *typed)));
        return ExitCode::ok;
    });
}

}  // namespace longreach::commands
