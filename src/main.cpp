// The command line: subcommands, one catch, exit codes.
#include <CLI/CLI.hpp>
#include <fcntl.h>

#include <cstdlib>
#include <string_view>

#include "base/build_info.h"
#include "commands/commands.h"
#include "train/signals.h"

using namespace longreach;

namespace {

// A process started with a standard stream closed would give its number to the next file it opens, and
// messages would end up in a checkpoint.
void occupy_standard_streams() {
    for (int fd = 0; fd <= 2; ++fd)
        if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0)
            std::_Exit(static_cast<int>(ExitCode::internal));
}

}  // namespace

int main(int argc, char** argv) {
    // Before anything slow: a stop signal must never end a training run by its default action.
    const std::string_view command = argc > 1 ? argv[1] : "";
    command == "train" || command == "sweep" ? end_at_stop_signals() : unblock_stop_signals();
    occupy_standard_streams();
    CLI::App app(
        "longreach trains small transformers from a JSON config and measures their loss at long contexts.");
    app.require_subcommand(1);
    app.set_version_flag("--version", build_info().version);
    Action action;
    // In the order of --help: runs, what is asked of them, what goes into them, the machine.
    add_train_command(app, action);
    add_sweep_command(app, action);
    add_report_command(app, action);
    add_eval_command(app, action);
    add_probe_command(app, action);
    add_generate_command(app, action);
    add_config_command(app, action);
    add_data_command(app, action);
    add_theory_command(app, action);
    add_bench_command(app, action);
    add_bench_attention_command(app, action);
    add_ranks_command(app, action);
    add_doctor_command(app, action);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        return app.exit(e) == 0 ? 0 : static_cast<int>(ExitCode::usage);
    }
    try {
        return static_cast<int>(action());
    } catch (const Error& e) {
        fmt::print(stderr, "error: {}\n", e.what());
        if (!e.hint().empty()) fmt::print(stderr, "hint: {}\n", e.hint());
        return static_cast<int>(e.code());
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "error: out of memory\n");
        return static_cast<int>(ExitCode::device);
    } catch (const std::exception& e) {
        fmt::print(stderr, "error: {}\n", e.what());
        return static_cast<int>(ExitCode::internal);
    }
}
