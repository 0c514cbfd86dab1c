// golden_vectors FOLDER: writes what this GPU gives for the vectors of golden.h to
// FOLDER/<device>.txt. 77 without one, 1 if it gives something else where only one answer is right.
// golden_vectors --probe: one small kernel, as a sign that the GPU answers.
// golden_vectors --store COLUMN ROW SEQUENCE: one box to that place of a tensor.
// golden_vectors --hang: a block that asks for more registers than it was launched with, which never ends; code 12.
#include <cctype>

#include "cuda/golden.h"
#include "io/file.h"
#include "kernels/cuda/progress.h"
#include "kernels/cuda_device.h"

using namespace longreach;

int main(int argc, char** argv) {
    const bool one_store = argc == 5 && argv[1] == std::string_view("--store");
    if (argc != 2 && !one_store) {
        fmt::print(stderr, "usage: golden_vectors FOLDER\n");
        return static_cast<int>(ExitCode::usage);
    }
    const CudaStatus status = cuda_status();
    if (!status.unusable.empty()) {
        fmt::print("skipped: no GPU can be used: {}\n", status.unusable);
        return 77;
    }
    try {
        if (argv[1] == std::string_view("--probe")) {
            const test::Words words{1, 2, 3};
            return test::run_golden("anew", words) == words ? 0 : 1;
        }
        if (argv[1] == std::string_view("--hang")) {
            test::start_golden_hang();
            cuda::Progress progress(nullptr, {.seconds = 2});
            progress.queued("32 + 2 * 240 registers of 3 * 168");
            progress.wait("golden_vectors");
            fmt::print("it ended\n");
            return 0;
        }
        if (argv[1] == std::string_view("--store")) {
            test::Words in(size_t{test::golden_columns} * test::golden_rows * test::golden_sequences / 2);
            for (int i = 2; i < 5; ++i) in.push_back(static_cast<uint32_t>(std::stoi(argv[i])));
            in.resize(in.size() + 512, 0x3f803f80);
            size_t written = 0;
            for (uint32_t word : test::run_golden_sm90("tensor_store", in)) written += word == 0x3f803f80;
            fmt::print("{} words of the tensor written\n", written);
            return 0;
        }
        const std::string& device = status.devices[0].name;
        std::string name;
        for (char c : device)
            name += std::isalnum(static_cast<unsigned char>(c))
                        ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                        : '-';
        const std::string path = fmt::format("{}/{}.txt", argv[1], name);
        // Two recordings, as a check on the device and on this program.
        const bool hopper = status.devices[0].architecture == 90;
        const test::GoldenFile file = test::record_golden(device, hopper);
        size_t wrong = 0;
        for (const test::GoldenSet& set : file.sets) {
            const size_t differ = test::unexpected_words(set);
            if (!set.expected.empty())
                fmt::print("{}: {} of {} words differ\n", set.op, differ, set.expected.size());
            wrong += differ;
        }
        const std::string text = write_golden(file);
        if (write_golden(test::record_golden(device, hopper)) != text) {
            fmt::print(stderr, "error: two recordings differ\n");
            return static_cast<int>(ExitCode::internal);
        }
        io::write_file_atomically(path, text);
        fmt::print("{}: {} bytes\n", path, text.size());
        if (wrong != 0) return 1;
    } catch (const Error& e) {
        fmt::print(stderr, "error: {}\n", e.what());
        return static_cast<int>(e.code());
    }
    return 0;
}
