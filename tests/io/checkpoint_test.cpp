#include <doctest/doctest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <vector>

#include "io/checkpoint_dir.h"
#include "io/manifest.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const io::Notice ignore = [](const std::string&) {};

io::Checkpoint save(const std::string& root, int64_t step,
                    const io::Retention& retention = {.keep = 100, .pinned = {}}) {
    io::CheckpointWriter writer(root, step);
    const io::SafetensorsWriter tensors({{.name = "w", .type = io::StoredType::f32, .shape = {2, 3}},
                                         {.name = "step", .type = io::StoredType::i64, .shape = {}}});
    writer.add_safetensors("model.safetensors", tensors,
                           [&](const io::StoredTensor& tensor, io::ByteSink& out) {
                               out.write(std::string(tensor.bytes(), static_cast<char>(step)));
                           });
    writer.add_text("state.json", fmt::format("{{\"step\": {}}}\n", step));
    return writer.commit(retention, ignore);
}

}  // namespace

TEST_CASE("a checkpoint is written, verified, found and read") {
    const TempDir dir;
    const std::string root = dir / "run/checkpoints";
    CHECK_FALSE(io::newest_checkpoint(root, io::Damaged::quarantine, ignore).has_value());
    const io::Checkpoint written = save(root, 800);
    CHECK(written.path == io::join_path(root, "step_00000800"));
    CHECK(get(io::join_path(root, "latest")) == "step_00000800\n");
    CHECK(io::list_directory(root) == std::vector<std::string>{"latest", "step_00000800"});
    const auto found = io::newest_checkpoint(root, io::Damaged::quarantine, ignore);
    REQUIRE(found.has_value());
    CHECK(found->step == 800);
    CHECK(found->files == written.files);
    CHECK(found->manifest_hash == written.manifest_hash);
    CHECK(found->has("state.json"));
    CHECK_FALSE(found->has("manifest.json"));
    const io::SafetensorsFile file =
        io::SafetensorsFile::open(found->file("model.safetensors"), io::Links::refuse);
    CHECK(file.find("w")->shape == std::vector<int64_t>{2, 3});
    // The hash of the manifest names the content.
    const TempDir other;
    CHECK(save(other.path(), 800).manifest_hash == written.manifest_hash);
    CHECK(save(other.path(), 801).manifest_hash != written.manifest_hash);
}

TEST_CASE("pruning keeps the newest, the pinned and nothing unfinished") {
    const TempDir dir;
    const std::string& root = dir.path();
    for (const int64_t step : {100, 200, 300, 400, 500}) save(root, step, {.keep = 2, .pinned = {200}});
    CHECK(io::checkpoint_steps(root) == std::vector<int64_t>{500, 400, 200});
    save(root, 600, {.keep = 0, .pinned = {}});
    CHECK(io::checkpoint_steps(root) == std::vector<int64_t>{600});
    // A step below the newest (a run that went back): the one just written stays.
    save(root, 550, {.keep = 1, .pinned = {}});
    CHECK(io::checkpoint_steps(root) == std::vector<int64_t>{550});

    std::filesystem::create_directories(dir / "step_00000001.tmp.0123456789abcdef/inner");
    put(dir / "latest.tmp.0123456789abcdef", "x");
    put(dir / "notes.tmp.txt", "the user's own");
    { const io::CheckpointWriter abandoned(root, 700); }
    CHECK(io::list_directory(root) == std::vector<std::string>{"latest", "notes.tmp.txt", "step_00000550"});
}

TEST_CASE("the file latest is only a hint: garbage in its place does no harm") {
    const TempDir dir;
    save(dir.path(), 100);
    put(dir / "latest", "../../somewhere/else\n");
    CHECK(io::newest_checkpoint(dir.path(), io::Damaged::leave, ignore)->step == 100);
    std::filesystem::remove(dir / "latest");
    CHECK(io::newest_checkpoint(dir.path(), io::Damaged::leave, ignore)->step == 100);
    std::filesystem::create_directory(dir / "latest");
    io::CheckpointWriter writer(dir.path(), 200);
    std::string notices;
    writer.commit({.keep = 1}, [&](const std::string& text) { notices += text; });
    CHECK(contains(notices, "step_00000200 is saved, but the file latest could not be replaced"));
    CHECK(io::checkpoint_steps(dir.path()) == std::vector<int64_t>{200});
}

TEST_CASE("only exact names are steps") {
    const TempDir dir;
    for (const char* name : {"step_00000007", "step_123456789", "step_7", "step_000000007", "step_0000000x",
                             "step_00000008.bad", "step_00000009.tmp.ab", "Step_00000001", "step_-0000001"})
        std::filesystem::create_directory(dir / name);
    put(dir / "step_00000010", "a file");
    std::filesystem::create_directory_symlink(dir / "step_00000007", dir / "step_00000011");
    CHECK(io::checkpoint_steps(dir.path()) == std::vector<int64_t>{123456789, 7});
    CHECK(io::checkpoint_steps(dir / "missing").empty());
}

TEST_CASE("the newest good checkpoint is found under damaged ones, which are quarantined and reported") {
    const TempDir dir;
    const std::string& root = dir.path();
    for (const int64_t step : {100, 200, 300, 400}) save(root, step);
    std::filesystem::resize_file(dir / "step_00000400/model.safetensors", 20);
    std::filesystem::remove(dir / "step_00000300/state.json");
    std::filesystem::create_directory(dir / "step_00000400.bad");  // an earlier victim keeps its name

    std::vector<std::string> notices;
    const io::Notice note = [&](const std::string& text) { notices.push_back(text); };
    auto found = io::newest_checkpoint(root, io::Damaged::leave, note);
    REQUIRE(found.has_value());
    CHECK(found->step == 200);
    CHECK(io::checkpoint_steps(root).size() == 4);
    REQUIRE(notices.size() == 2);
    CHECK(contains(notices[0], "step_00000400 is not usable"));
    CHECK(contains(notices[0], "model.safetensors has 20 bytes, the manifest says"));
    CHECK(contains(notices[1], "state.json: No such file or directory"));

    notices.clear();
    found = io::newest_checkpoint(root, io::Damaged::quarantine, note);
    REQUIRE(found.has_value());
    CHECK(found->step == 200);
    CHECK(io::checkpoint_steps(root) == std::vector<int64_t>{200, 100});
    REQUIRE(notices.size() == 2);
    CHECK(contains(notices[0], "step_00000400 is damaged and was renamed to step_00000400.bad."));
    CHECK(std::filesystem::exists(dir / "step_00000300.bad/model.safetensors"));
}

TEST_CASE("if all checkpoints are damaged the run does not begin anew") {
    const TempDir dir;
    save(dir.path(), 100);
    put(dir / "step_00000100/state.json", "{\"step\": 101}\n");
    CHECK(error_of([&] { io::newest_checkpoint(dir.path(), io::Damaged::leave, ignore); }) ==
          fmt::format("4: none of the 1 checkpoints in {} is usable", dir.path()));
    CHECK(contains(error_of([&] { io::verify_checkpoint(dir.path(), 100); }),
                   "state.json does not match its checksum in the manifest"));
}

TEST_CASE("every single-bit flip and every truncation of every file of a checkpoint is noticed") {
    const TempDir dir;
    const io::Checkpoint good = save(dir.path(), 100);
    for (const std::string& name : io::list_directory(good.path)) {
        const std::string path = good.file(name), content = get(path);
        for (size_t i = 0; i < content.size(); ++i)
            for (int bit = 0; bit < 8; ++bit) {
                std::string damaged = content;
                damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
                put(path, damaged);
                INFO(name, " byte ", i, " bit ", bit);
                CHECK(contains(error_of([&] { io::verify_checkpoint(dir.path(), 100); }), "4: "));
            }
        for (size_t size = 0; size < content.size(); ++size) {
            put(path, content.substr(0, size));
            CHECK(contains(error_of([&] { io::verify_checkpoint(dir.path(), 100); }), "4: "));
        }
        put(path, content + "\n");
        CHECK(contains(error_of([&] { io::verify_checkpoint(dir.path(), 100); }), "4: "));
        put(path, content);
    }
    CHECK(io::verify_checkpoint(dir.path(), 100).files == good.files);
}

TEST_CASE("files of two checkpoints mixed, links and other things in the place of files are noticed") {
    const TempDir dir;
    const io::Checkpoint a = save(dir.path(), 100), b = save(dir.path(), 200);
    const auto outcome = [&] { return error_of([&] { io::verify_checkpoint(dir.path(), 200); }); };
    const std::string state = get(b.file("state.json")), manifest = get(b.file("manifest.json"));

    put(b.file("state.json"), get(a.file("state.json")));
    CHECK(contains(outcome(), "4: "));
    put(b.file("state.json"), state);
    put(b.file("manifest.json"), get(a.file("manifest.json")));
    CHECK(contains(outcome(), "is the manifest of step 100"));
    put(b.file("manifest.json"), manifest);
    CHECK(outcome() == "no error");

    std::filesystem::remove(b.file("state.json"));
    put(dir / "elsewhere", state);
    std::filesystem::create_symlink(dir / "elsewhere", b.file("state.json"));
    CHECK(contains(outcome(), "it is a symbolic link"));
    std::filesystem::remove(b.file("state.json"));
    std::filesystem::create_directory(b.file("state.json"));
    CHECK(contains(outcome(), "is not a regular file"));
    std::filesystem::remove(b.file("state.json"));
    put(b.file("state.json"), state);
    put(b.file("stranger"), "an unlisted file does no harm");
    CHECK(outcome() == "no error");
}

TEST_CASE("a manifest is read strictly") {
    const std::vector<io::ManifestEntry> files{{"model.safetensors", 5, 0xabc}, {"state.json", 0, 1}};
    const std::string good = io::format_manifest(7, files);
    CHECK(io::parse_manifest(good, "m").files == files);
    CHECK(io::parse_manifest(io::format_manifest(0, {}), "m").files.empty());
    const auto outcome = [](const std::string& text) {
        return error_of([&] { io::parse_manifest(text, "m"); });
    };
    // A change, with the checksum made right again: a forged manifest.
    const auto forged = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        const std::string mark = "\"checksum\": \"";
        const size_t at = text.rfind(mark) + mark.size();
        text.replace(at, 16, 16, '0');
        text.replace(at, 16, format_hash64(xxh64(text)));
        return outcome(text);
    };
    CHECK(forged("state.json", "state.json") == "no error");
    CHECK(contains(outcome(""), "4: m:"));
    CHECK(contains(outcome("[]"), "4: m: no member format"));
    CHECK(contains(outcome(good + "x"), "4: m:"));
    CHECK(forged("longreach checkpoint", "longreach something") ==
          "4: m: this is not the manifest of a checkpoint");
    CHECK(forged("\"version\": 1", "\"version\": 2") ==
          "4: m: format version 2; this program reads version 1");
    CHECK(forged("\"step\": 7", "\"step\": -7") == "4: m: step is not a count");
    CHECK(forged("\"step\": 7", "\"step\": 7.5") == "4: m: step is not a count");
    for (const char* name : {"../x", "/etc/passwd", "", ".hidden", "a b", "manifest.json", "a/b", "\\u0000",
                             "..", "\xc3\xa9", "a\\nb"})
        CHECK(forged("state.json", name) == "4: m: a file has no acceptable name");
    CHECK(forged("state.json", "model.safetensors") == "4: m: file model.safetensors is listed twice");
    CHECK(forged("\"bytes\": 5", "\"bytes\": -5") == "4: m: the size of model.safetensors is not a count");
    CHECK(forged("0000000000000abc", "0000000000000ABC") == "4: m: xxh64 is not 16 hexadecimal digits");
    std::string text = good;
    text.replace(text.find("state.json"), 10, "State.json");
    CHECK(outcome(text) == "4: m: the manifest does not match its checksum");
}

TEST_CASE("a writer holds its callers to their word and leaves nothing without a commit") {
    const TempDir dir;
    {
        io::CheckpointWriter writer(dir.path(), 1);
        writer.add_text("a.json", "{}");
        CHECK(contains(error_of([&] { writer.add_text("a.json", "{}"); }), "a.json is added twice"));
        CHECK(contains(error_of([&] { writer.add_text("../a", "{}"); }), "cannot be a file of a checkpoint"));
        CHECK(contains(error_of([&] { writer.add("b", 3, [](io::ByteSink& out) { out.write("four"); }); }),
                       "b: 4 bytes written, 3 announced"));
        CHECK(contains(
            error_of([&] { writer.add("c", 3, [](io::ByteSink&) { fail(ExitCode::numerics, "NaN"); }); }),
            "7: NaN"));
    }
    CHECK(io::list_directory(dir.path()).empty());
}

TEST_CASE(
    "a manifest whose checksum has a digit written as a JSON escape is damaged, and no reason to stop") {
    const TempDir dir;
    save(dir.path(), 100);
    const io::Checkpoint newest = save(dir.path(), 200);
    const std::string path = newest.file("manifest.json"), good = get(path);
    const std::string mark = "\"checksum\": \"";
    const size_t last = good.rfind(mark) + mark.size() + 15;
    put(path, good.substr(0, last) + fmt::format("\\u00{:02x}", good[last]) + good.substr(last + 1));
    CHECK(error_of([&] { io::verify_checkpoint(dir.path(), 200); }) ==
          fmt::format("4: {}: the checksum is not written as plain digits", path));
    const auto found = io::newest_checkpoint(dir.path(), io::Damaged::quarantine, ignore);
    REQUIRE(found.has_value());
    CHECK(found->step == 100);
    CHECK(std::filesystem::exists(dir / "step_00000200.bad"));
}

TEST_CASE(
    "whatever is thrown while a checkpoint is examined means that it is damaged, but for disks and memory") {
    const TempDir dir;
    const std::string& root = dir.path();
    const auto outcome = [&](const io::Examine& examine) {
        for (const int64_t step : {100, 200}) save(root, step);
        const std::string result = error_of([&] {
            io::newest_checkpoint(root, io::Damaged::quarantine, ignore, io::Disk::system(), examine);
        });
        const bool renamed = std::filesystem::exists(dir / "step_00000200.bad");
        std::filesystem::remove_all(dir / "step_00000200.bad");
        return fmt::format("{} {}", result, renamed ? "renamed" : "kept");
    };
    const auto of_newest = [](auto error) {
        return [error](const io::Checkpoint& c) {
            if (c.step == 200) throw error;
        };
    };
    CHECK(outcome({}) == "no error kept");
    CHECK(outcome(of_newest(std::out_of_range("basic_string::replace"))) == "no error renamed");
    CHECK(outcome(of_newest(Error(ExitCode::internal, "a bug"))) == "no error renamed");
    CHECK(outcome(of_newest(Error(ExitCode::usage, "a config"))) == "no error renamed");
    CHECK(outcome(of_newest(Error(ExitCode::data, "short"))) == "no error renamed");
    CHECK(outcome(of_newest(Error(ExitCode::disk, "EIO"))) == "no error kept");
    CHECK(outcome(of_newest(Error(ExitCode::device, "no memory"))) == "6: no memory kept");
    CHECK_THROWS_AS(outcome(of_newest(std::bad_alloc())), std::bad_alloc);
    CHECK_FALSE(std::filesystem::exists(dir / "step_00000200.bad"));
}
