// Every mutant is reported with its kind, every correct twin is silent under all schedules.
#include "simt/mutants.h"

#include <doctest/doctest.h>

#include <cstdio>

using namespace longreach;
using namespace longreach::mutants;

namespace {

std::vector<Mutant> everything() {
    std::vector<Mutant> all = synchronisation();
    for (const auto& more : {memory(), copies(), streams()}) all.insert(all.end(), more.begin(), more.end());
    return all;
}

struct Collecting {  // findings are read, not thrown
    Collecting() {
        simt::options() = simt::Options();
        simt::options().throw_on_finding = false;
        simt::clear_findings();
    }
    ~Collecting() {
        simt::options() = simt::Options();
        simt::clear_findings();
    }
};

}  // namespace

TEST_CASE("every correct twin is silent under all schedules") {
    for (const Mutant& mutant : everything()) {
        INFO(std::string(mutant.name));
        Collecting collecting;
        int passed = mutant.run(false);
        CHECK(passed == schedules);
        for (const auto& finding : simt::findings())
            FAIL_CHECK(std::string(simt::name_of(finding.kind)) << ": " << finding.message);
    }
}

TEST_CASE("every mutant is reported with its kind") {
    std::vector<Mutant> all = everything();
    CHECK(all.size() >= 30);
    for (const Mutant& mutant : all) {
        INFO(std::string(mutant.name));
        Collecting collecting;
        int passed = mutant.run(true);
        CHECK(passed < schedules);
        bool reported = false;
        std::string seen;
        for (const auto& finding : simt::findings()) {
            reported |= finding.kind == mutant.kind;
            seen += std::string(simt::name_of(finding.kind)) + ": " + finding.message + "\n";
        }
        CHECK_MESSAGE(reported, "expected " << std::string(simt::name_of(mutant.kind)) << ", got\n" << seen);
    }
}

TEST_CASE("a finding ends the launch with an exception that names kind, thread and line") {
    simt::clear_findings();
    Mutant first = synchronisation().front();
    std::string text;
    try {
        first.run(true);
    } catch (const simt::Failure& failure) {
        text = failure.what();
    }
    simt::clear_findings();
    CAPTURE(text);
    CHECK(text.find("shared_race: ") == 0);
    CHECK(text.find("mutants_sync_test.cpp:") != std::string::npos);
    CHECK(text.find("thread (") != std::string::npos);
}

// test_simt_mutants -tc='the table of mutants' --no-skip
TEST_CASE("the table of mutants" * doctest::skip()) {
    for (const Mutant& mutant : everything()) {
        Collecting collecting;
        int passed = mutant.run(true);
        for (const auto& finding : simt::findings()) {
            if (finding.kind != mutant.kind) continue;
            std::printf("%s | %s | schedule %d | %s\n", mutant.name, simt::name_of(finding.kind), passed,
                        finding.message.c_str());
            break;
        }
    }
}
