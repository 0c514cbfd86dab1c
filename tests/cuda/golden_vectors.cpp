// golden_vectors FOLDER: writes what this GPU gives for the vectors of golden.h to
// FOLDER/<device>.txt. 77 without one.
#include <cctype>

#include "cuda/golden.h"
#include "io/file.h"
#include "kernels/cuda_device.h"

using namespace longreach;

int main(int argc, char** argv) {
    if (argc != 2) {
        fmt::print(stderr, "usage: golden_vectors FOLDER\n");
        return static_cast<int>(ExitCode::usage);
    }
    const CudaStatus status = cuda_status();
    if (!status.unusable.empty()) {
        fmt::print("skipped: no GPU can be used: {}\n", status.unusable);
        return 77;
    }
    try {
        const std::string& device = status.devices[0].name;
        std::string name;
        for (char c : device)
            name += std::isalnum(static_cast<unsigned char>(c))
                        ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                        : '-';
        const std::string path = fmt::format("{}/{}.txt", argv[1], name);
        // Two recordings, as a check on the device and on this program.
        const std::string text = write_golden(test::record_golden(device));
        if (write_golden(test::record_golden(device)) != text) {
            fmt::print(stderr, "error: two recordings differ\n");
            return static_cast<int>(ExitCode::internal);
        }
        io::write_file_atomically(path, text);
        fmt::print("{}: {} bytes\n", path, text.size());
    } catch (const Error& e) {
        fmt::print(stderr, "error: {}\n", e.what());
        return static_cast<int>(e.code());
    }
    return 0;
}
