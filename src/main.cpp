// The command line: subcommands, one catch, exit codes.
#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>

#include "base/memory.h"
#include "base/process.h"
#include "base/units.h"
#include "commands/commands.h"
#include "train/console.h"
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

// In the order of --help: runs, what is asked of them, what goes into them, the machine, the program.
void add_commands(commands::Command& program) {
    commands::add_train_command(program);
    commands::add_sweep_command(program);
    commands::add_report_command(program);
    commands::add_runs_command(program);
    commands::add_eval_command(program);
    commands::add_probe_command(program);
    commands::add_generate_command(program);
    commands::add_serve_command(program);
    commands::add_export_command(program);
    commands::add_import_command(program);
    commands::add_config_command(program);
    commands::add_data_command(program);
    commands::add_laws_command(program);
    commands::add_theory_command(program);
    commands::add_bench_command(program);
    commands::add_bench_attention_command(program);
    commands::add_ranks_command(program);
    commands::add_doctor_command(program);
    commands::add_completion_command(program);
    commands::add_man_command(program);
}

ExitCode run_command(int argc, char** argv) {
    ExitCode code = ExitCode::ok;
    const commands::Action action = commands::read_command_line(argc, argv, add_commands, code);
    if (action) code = action();  // else help or an error was printed
    // For what was asked for. Progress that a console does not take is dropped where it is written.
    const bool whole = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    const std::string lost = whole ? train::Console::lost() : std::strerror(errno);
    require(lost.empty(), ExitCode::disk, "cannot write to standard output: {}", lost);
    return code;
}

// What the system calls of the C++ library report: a full disk under standard output, no room for a thread.
ExitCode code_of(const std::system_error& error) {
    const std::error_code& code = error.code();
    if (code == std::errc::resource_unavailable_try_again || code == std::errc::not_enough_memory)
        return ExitCode::device;
    return code.category() == std::generic_category() || code.category() == std::system_category()
               ? ExitCode::disk
               : ExitCode::internal;
}

int run_guarded(int argc, char** argv) noexcept {
    const auto end = [](ExitCode code, std::string_view message, std::string_view hint = {}) {
        print_error(message, hint);
        return static_cast<int>(code);
    };
    try {
        try {
            return static_cast<int>(run_command(argc, argv));
        } catch (const Error& e) {
            return end(e.code(), e.what(), e.hint());
        } catch (const std::bad_alloc&) {
            const FreeMemory free = free_memory();
            return end(
                ExitCode::device,
                fmt::format("out of memory: this process holds {}, {} are free (limit: {})",
                            human_bytes(train::resident_bytes()), human_bytes(free.bytes), free.limit));
        } catch (const std::system_error& e) {
            return end(code_of(e), e.what());
        } catch (const std::exception& e) {
            return end(ExitCode::internal, e.what());
        }
    } catch (...) {
        return end(ExitCode::device, "out of memory");
    }
}

}  // namespace

int main(int argc, char** argv) {
    // Before anything slow: a stop signal must never end a training run by its default action.
    const std::string_view command = argc > 1 ? argv[1] : "";
    command == "train" || command == "sweep" ? train::end_at_stop_signals() : train::unblock_stop_signals();
    occupy_standard_streams();
    ignore_file_size_signal();
    return with_enough_stack([&] { return run_guarded(argc, argv); });
}
