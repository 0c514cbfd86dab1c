// Every row operation of kernels/cuda in f32 and bf16, at several shapes, under several schedules; and whether the
// table names every launcher there is.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include "simt/row_table.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Launchers that are no row operations: the file whose cases run them in both types under the schedules.
const std::map<std::string, std::string> held_elsewhere = {
    {"attention", "attention_forward_test.cpp"},
    {"attention_backward", "attention_backward_test.cpp"},
    {"attention_statistics", "attention_statistics_test.cpp"},
    {"break_sticks", "stick_breaking_test.cpp"},
    {"break_sticks_backward", "stick_breaking_test.cpp"},
    {"stick_decode", "stick_breaking_test.cpp"},
    {"stick_statistics", "stick_breaking_test.cpp"},
    {"muon_momentum", "muon_test.cpp"},  // by cuda::muon()
    {"muon_scale", "muon_test.cpp"},
    {"muon_update", "muon_test.cpp"},
};
// Element types are chosen by their tensors; no operand of these can be bf16 by contract.
const std::set<std::string> only_f32 = {
    "row_starts",  "law_rows", "law_gradient", "head_maxima",           "qk_clip",     "sum",
    "sum_squares", "adam",     "running_sums", "running_sums_backward", "token_angles"};

std::string text_of(const std::string& path) {
    std::ifstream file(std::string(LONGREACH_SOURCE_DIR) + "/" + path);
    REQUIRE_MESSAGE(file, path);
    return {std::istreambuf_iterator<char>(file), {}};
}
// Functions that return nothing and take arguments that end in a stream.
std::set<std::string> declared_launchers(const std::string& path) {
    const std::string text = text_of(path);
    static const std::regex declaration("(?:^|\n)void ([a-z_0-9]+)\\([^;{]*Stream stream\\);");
    static const std::regex end_of_one("Stream[ \n]+stream[ \n]*\\)");
    std::set<std::string> names;
    for (std::sregex_iterator at(text.begin(), text.end(), declaration), end; at != end; ++at)
        names.insert((*at)[1]);
    const auto ends = std::distance(std::sregex_iterator(text.begin(), text.end(), end_of_one), {});
    CHECK(std::ssize(names) == ends);  // none is written in a way that the first expression does not know
    return names;
}

void run(const std::vector<RowCase>& cases) {
    for (const RowCase& c : cases)
        for (DType type : {DType::f32, DType::bf16}) {
            if (type == DType::bf16 && !c.activations) continue;
            CHECK(c.shapes.size() >= 3);
            for (const Shape& shape : c.shapes) {
                INFO(c.launcher << " (" << c.variant << ") "
                                << std::string(type == DType::f32 ? "f32" : "bf16") << " " << shape.rows
                                << "x" << shape.width << "+" << shape.gap);
                Problem problem(type, shape, simt::usual_schedules());
                CHECK_NOTHROW(c.body(problem));
            }
        }
}

}  // namespace

TEST_CASE("operations element by element are the CPU's in both types, under every schedule") {
    run(element_cases());
}

TEST_CASE("operations row by row are the CPU's in both types, under every schedule") {
    run(row_cases());
}

TEST_CASE("the gated delta rule is the CPU's in both types, under every schedule") {
    run(delta_cases());
}

TEST_CASE("operations on parameters and tables are the CPU's under every schedule") {
    run(parameter_cases());
}

TEST_CASE("the table names every launcher, in bf16 where it takes activations") {
    std::set<std::string> declared = declared_launchers("kernels/cuda/kernels.h");
    declared.merge(declared_launchers("kernels/cuda/muon.h"));
    REQUIRE(!declared.empty());

    std::string sources;
    for (const char* part : {"elements", "rows", "parameters", "delta"})
        sources += text_of("tests/simt/row_table_" + std::string(part) + ".cpp");
    std::set<std::string> in_bf16, in_f32;
    for (const auto& cases : {element_cases(), row_cases(), parameter_cases(), delta_cases()})
        for (const RowCase& c : cases) {
            CAPTURE(c.launcher);
            CHECK(declared.contains(c.launcher));
            CHECK(sources.find("cuda::" + c.launcher + "(") != std::string::npos);
            (c.activations ? in_bf16 : in_f32).insert(c.launcher);
        }
    for (const std::string& name : declared) {
        CAPTURE(name);
        if (held_elsewhere.contains(name)) {
            const std::string text = text_of("tests/simt/" + held_elsewhere.at(name));
            CHECK(text.find("cuda::" + name.substr(0, name.find("muon_") == 0 ? 4 : name.size()) + "(") !=
                  std::string::npos);
            CHECK(text.find("bf16") != std::string::npos);
            CHECK(text.find("run_schedules") != std::string::npos);
        } else {
            CHECK((only_f32.contains(name) ? in_f32 : in_bf16).contains(name));
        }
    }
}
