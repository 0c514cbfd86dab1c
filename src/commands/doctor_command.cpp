// longreach doctor: the hardware and libraries of this machine, and which of them would be used.
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/build_info.h"
#include "base/terminal.h"
#include "base/units.h"
#include "commands/commands.h"
#include "io/file.h"
#include "kernels/cuda_device.h"
#include "train/device.h"

namespace longreach::commands {

namespace {

// Prints the speed of a large matrix product.
void rate(const char* title, train::Device device, train::PrecisionChoice precision) {
    train::SystemConfig system;
    system.device = device;
    system.precision = precision;
    try {
        std::string note;
        const std::unique_ptr<Ops> ops = train::open_device(system, note);
        const int64_t n = ops->traits().peak_product;
        print_text("{:<12} {:.0f} GFLOP/s in a {}^3 matrix product ({})\n", title,
                   train::measure_peak(*ops) / 1e9, n, ops->describe());
    } catch (const Error& e) {
        print_text("{:<12} {}\n", title, e.what());
    }
}

ExitCode doctor() {
    const BuildInfo build = build_info();
    print_text("version      {} ({}, {})\n", build.version, build.compiler, build.build_type);
    print_text("system       {}\n", build.system);
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    print_text("memory       {}\n", human_bytes(pages * page));
    print_text("disk         {} free here\n", human_bytes(static_cast<int64_t>(io::free_bytes("."))));
    const CudaStatus cuda = cuda_status();
    print_text("cuda         {}\n", cuda.unusable.empty() ? "usable" : "not usable: " + cuda.unusable);
    if (cuda.built)
        print_text("             driver {}, runtime {}, {}\n", cuda.driver.empty() ? "none" : cuda.driver,
                   cuda.runtime, cuda.blas.empty() ? "no cuBLASLt" : cuda.blas);
    for (const CudaDevice& d : cuda.devices)
        print_text(
            "             {}: sm_{}, {} multiprocessors, {} of memory, {} of shared memory per block\n",
            d.name, d.architecture, d.multiprocessors, human_bytes(d.memory), human_bytes(d.shared_memory));
    rate("cpu fp32", train::Device::cpu, train::PrecisionChoice::fp32);
    rate("cpu bf16", train::Device::cpu, train::PrecisionChoice::bf16);
    if (cuda.unusable.empty()) {
        rate("gpu fp32", train::Device::cuda, train::PrecisionChoice::fp32);
        rate("gpu bf16", train::Device::cuda, train::PrecisionChoice::bf16);
    }
    return ExitCode::ok;
}

}  // namespace

void add_doctor_command(Command& program) {
    Command command = program.add("doctor", "What this machine offers and what would be used");
    command.run(doctor);
}

}  // namespace longreach::commands
