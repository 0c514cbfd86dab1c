// Where NVIDIA's libraries are looked for. A copy of libm stands for one.
#include "kernels/toolkit_library.h"

#include <doctest/doctest.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::string any(const ToolkitLibrary&) {
    return "";
}

// PATH for the length of a test.
struct Path {
    std::string before = std::getenv("PATH") ? std::getenv("PATH") : "";
    explicit Path(const std::string& path) { setenv("PATH", path.c_str(), 1); }
    ~Path() { setenv("PATH", before.c_str(), 1); }
};

std::filesystem::path libm() {
    Dl_info info{};
    double (*const function)(double) = &::lgamma;
    REQUIRE(dladdr(reinterpret_cast<const void*>(function), &info) != 0);
    return info.dli_fname;
}

}  // namespace

TEST_CASE("a library is found in the Python packages of a python3 in PATH") {
    const TempDir dir;
    const std::filesystem::path root = dir.path(),
                                folder = root / "lib/python3.99/site-packages/nvidia/cu99/lib";
    std::filesystem::create_directories(folder);
    std::filesystem::create_directories(root / "bin");
    std::filesystem::copy_file(libm(), folder / "libof_a_package.so.9");
    const Path path("/nowhere::" + (root / "bin").string() + ":/usr/bin");
    CHECK_THROWS_AS(ToolkitLibrary({"libof_a_package.so.9"}, "it", any), Error);  // no python3 there yet
    std::ofstream(root / "bin/python3").put('\n');
    const ToolkitLibrary library({"libmissing.so.1", "libof_a_package.so.9"}, "it", any);
    CHECK(library.symbol("lgamma") != nullptr);
    CHECK(library.symbol("no_such_function") == nullptr);
}

TEST_CASE("a missing library is an error that names every place") {
    try {
        ToolkitLibrary({"libmissing.so.1"}, "Missing 1", any);
        CHECK(false);
    } catch (const Error& error) {
        CHECK(error.code() == ExitCode::device);
        CHECK(error.hint().find("install Missing 1") == 0);
        CHECK(error.hint().find("/usr/local/cuda/lib64/libmissing.so.1") != std::string::npos);
    }
}
