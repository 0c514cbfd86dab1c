// Imports and exports models, makes runs with random weights of a file with the section "model", and computes logits, for the comparison with other implementations (peers.py):
//
//   logits_file --import DIRECTORY RUN
//   logits_file --export RUN DIRECTORY
//   logits_file --make MODEL RUN
//   logits_file RUN IDS OUT
//
// IDS holds token ids as 4-byte integers; OUT receives f32 [2, T, V]: from passes over whole texts, and from decoding.
#include <cstdio>

#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/made_run.h"
#include "exchange/run_logits.h"
#include "io/temp_dir.h"

using namespace longreach;

namespace {

void run(const std::vector<std::string>& arguments) {
    const io::Notice notice = [](const std::string& text) { fmt::print("{}\n", text); };
    if (arguments.at(0) == "--import") {
        const auto result = exchange::import_model(
            {.directory = arguments.at(1), .output = arguments.at(2), .replace = true}, notice);
        fmt::print("{}", exchange::to_text(result));
        return;
    }
    if (arguments.at(0) == "--export") {
        const auto result = exchange::export_model(
            {.target = arguments.at(1), .directory = arguments.at(2), .replace = true}, notice);
        fmt::print("{}", exchange::to_text(result));
        return;
    }
    if (arguments.at(0) == "--make") {
        test::make_run(arguments.at(2), test::get(arguments.at(1)));
        return;
    }
    const std::string bytes = test::get(arguments.at(1));
    std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
    std::copy_n(bytes.data(), ids.size() * sizeof(int32_t), reinterpret_cast<char*>(ids.data()));
    std::string out;
    for (const bool steps : {false, true})
        for (const std::vector<float>& row : test::run_logits(arguments.at(0), ids, steps))
            out.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
    test::put(arguments.at(2), out);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run({argv + 1, argv + argc});
        return 0;
    } catch (const Error& error) {
        std::fputs((std::string(error.what()) + "\n").c_str(), stderr);
        return static_cast<int>(error.code());
    }
}
