// longreach doctor: what this machine offers and what would be used.
#include <CLI/CLI.hpp>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/build_info.h"
#include "base/units.h"
#include "commands/commands.h"
#include "io/file.h"
#include "train/device.h"

namespace longreach {

namespace {

ExitCode doctor() {
    const BuildInfo build = build_info();
    fmt::print("version      {} ({}, {})\n", build.version, build.compiler, build.build_type);
    fmt::print("system       {}\n", build.system);
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    fmt::print("memory       {}\n", human_bytes(pages * page));
    fmt::print("disk         {} free here\n", human_bytes(static_cast<int64_t>(free_bytes("."))));
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        SystemConfig system;
        system.precision = precision;
        try {
            std::string note;
            const std::unique_ptr<Ops> ops = open_device(system, note);
            fmt::print("{:<12} {}: {:.0f} GFLOP/s in a 1024^3 matrix product\n",
                       precision == Precision::fp32 ? "fp32" : "bf16", note, measure_peak(*ops) / 1e9);
        } catch (const Error& e) {
            fmt::print("{:<12} {}\n", precision == Precision::fp32 ? "fp32" : "bf16", e.what());
        }
    }
    return ExitCode::ok;
}

}  // namespace

void add_doctor_command(CLI::App& app, Action& action) {
    CLI::App* command = app.add_subcommand("doctor", "What this machine offers and what would be used");
    command->callback([&action] { action = doctor; });
}

}  // namespace longreach
