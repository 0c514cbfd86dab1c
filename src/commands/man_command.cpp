// longreach man: the manual, as an installation has it.
#include "base/build_info.h"
#include "base/text.h"
#include "commands/commands.h"
#include "commands/man_page.h"

namespace longreach::commands {

namespace {

struct ManOptions {
    std::string page;
    bool list = false;
};

ExitCode man(const ManOptions& options, const CommandInfo& all) {
    const std::vector<ManPage> pages =
        man_pages(all, config::describe<train::Experiment>(), build_info().version);
    std::vector<std::string> topics;
    for (const ManPage& page : pages) {
        if (options.list) fmt::print("{}\n", page.file());
        if (!options.list && (options.page == page.topic || options.page == page.file())) {
            fmt::print("{}", page.text);
            return ExitCode::ok;
        }
        if (!page.topic.empty()) topics.push_back(page.topic);
    }
    const std::vector<std::string> near = nearest(options.page, topics, 2);
    require(options.list, ExitCode::usage, "there is no page {}: {}", shown(options.page),
            near.empty() ? "known are " + join(topics, ", ") : "did you mean " + alternatives(near) + "?");
    return ExitCode::ok;
}

}  // namespace

void add_man_command(Command& program) {
    auto options = std::make_shared<ManOptions>();
    Command command = program.add("man", "The manual: longreach man train | man -l -");
    command.option("page", options->page, "A command, or fields: those of a config (default: the program)");
    command.flag("--list", options->list, "The names of all pages");
    command.run([options](const CommandInfo& all) { return man(*options, all); });
}

}  // namespace longreach::commands
