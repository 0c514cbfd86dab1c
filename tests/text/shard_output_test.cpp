// The directory of `data tokenize` under failing disks, kills, other users and --replace.
#include "text/shard_output.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "attacks/rounds.h"
#include "data/shard_fixtures.h"
#include "text/synth.h"
#include "data/token_stream.h"
#include "text/tokenize.h"
#include "io/fault_disk.h"

using namespace longreach;
using namespace longreach::test;

namespace {

namespace fs = std::filesystem;
using Contents = std::map<std::string, std::string>;

// Every file below, by its path.
Contents contents_of(const std::string& directory) {
    Contents contents;
    for (const auto& entry : fs::recursive_directory_iterator(directory))
        if (entry.is_regular_file())
            contents[fs::relative(entry.path(), directory).string()] = get(entry.path().string());
    return contents;
}

void set_contents(const std::string& directory, const Contents& contents) {
    fs::remove_all(directory);
    fs::create_directory(directory);
    for (const auto& [name, bytes] : contents) put(io::join_path(directory, name), bytes);
}

std::string lines(int count, const std::string& word) {
    std::string text;
    for (int i = 0; i < count; ++i) text += fmt::format("{{\"text\": \"{} {}\"}}\n", word, i);
    return text;
}

struct Workplace {
    TempDir dir;
    text::TokenizeOptions options;
    explicit Workplace(int documents = 16) {
        put(dir / "text.jsonl", lines(documents, "word"));
        options = {.source = {.inputs = {dir / "text.jsonl"}},
                   .output = dir / "out",
                   .split = {.every = 4},
                   .max_shard_tokens = 40};
    }
    Contents out() const { return contents_of(dir / "out"); }
    std::string outcome() const {
        return anonymous(error_of([&] { text::tokenize(options); }), dir.path());
    }
    Contents whole() {
        text::TokenizeOptions other = options;
        other.output = dir / "whole";
        other.replace = false;
        text::tokenize(other);
        return contents_of(dir / "whole");
    }
};

struct Trouble {
    Fault fault;
    Loss loss;
    int64_t first, step;  // operations; the crashes together take place at each
};
constexpr Trouble troubles[] = {{Fault::crash, Loss::nothing, 0, 3},
                                {Fault::crash, Loss::data, 1, 3},
                                {Fault::crash, Loss::everything, 2, 3},
                                {Fault::error, Loss::nothing, 0, 1},
                                {Fault::full, Loss::nothing, 0, 2}};

// Lets the disk fail at every operation of a call, from the same directory each time; `check` sees what is left.
void fail_everywhere(Workplace& work, const Contents& before, const std::function<void(Fault)>& check) {
    FaultDisk counter;
    set_contents(work.dir / "out", before);
    work.options.disk = &counter;
    text::tokenize(work.options);
    const bool all = attack_rounds() > 3;
    for (const Trouble& trouble : troubles)
        for (int64_t at = all ? 0 : trouble.first; at < counter.operations(); at += all ? 1 : trouble.step) {
            set_contents(work.dir / "out", before);
            FaultDisk disk(trouble.fault, at, EIO);
            work.options.disk = &disk;
            const std::string outcome = work.outcome();
            disk.lose_power(trouble.loss);
            work.options.disk = &io::Disk::system();
            CAPTURE(outcome);
            CAPTURE(at);
            CAPTURE(static_cast<int>(trouble.fault));
            CAPTURE(static_cast<int>(trouble.loss));
            check(trouble.fault);
        }
}

std::string with(const std::string& directory, const std::string& name) {
    put(io::join_path(directory, name), "precious");
    return name;
}

}  // namespace

TEST_CASE(
    "a disk that fills or fails at any operation loses no complete shard, and the same call ends with the "
    "same bytes") {
    Workplace work;
    const Contents whole = work.whole();
    int continued = 0, continued_after_error = 0;
    fail_everywhere(work, {}, [&](Fault fault) {
        // What looks complete is complete.
        const std::string state = error_of([&] { data::TokenStream::open({work.dir / "out"}, {}); });
        CHECK((state != "no error" || work.out() == whole));
        work.options.replace = state == "no error";  // the call had ended before the power was lost
        const text::TokenizeResult result = text::tokenize(work.options);
        work.options.replace = false;
        if (result.resumed_shards > 0) ++(fault == Fault::crash ? continued : continued_after_error);
        CHECK((work.out() == whole));
    });
    CHECK(continued > 50);
    CHECK(continued_after_error > 50);
}

TEST_CASE("shards are replaced whole or not at all, at whatever operation the disk fails") {
    Workplace work(8);
    Workplace old(12);
    put(old.dir / "text.jsonl", lines(12, "former"));
    Contents before = old.whole(), expected = work.whole();
    before["notes.txt"] = expected["notes.txt"] = "precious";
    work.options.replace = true;
    int kept = 0, moved = 0;
    fail_everywhere(work, before, [&](Fault) {
        Contents left = work.out();
        const std::string state = error_of([&] { data::TokenStream::open({work.dir / "out"}, {}); });
        if (state == "no error") {
            std::erase_if(left, [](const auto& file) {
                return file.first.starts_with("unfinished.new/") || contains(file.first, ".tmp.");
            });
            CHECK((left == before || left == expected));
            kept += left == before;
        } else {
            CHECK(contains(state, "holds unfinished shards"));
            ++moved;
        }
        const text::TokenizeResult result = text::tokenize(work.options);
        CHECK(result.others == std::vector<std::string>{"notes.txt"});
        CHECK(contains(text::to_text(result), "not of this program, left as they are: notes.txt\n"));
        CHECK((work.out() == expected));
        for (const std::string& shard : result.train.shards) CHECK(fs::exists(shard));
    });
    CHECK(kept > 50);
    CHECK(moved > 10);
}

TEST_CASE("--replace checks everything before it removes anything") {
    Workplace work;
    text::tokenize(work.options);
    const Contents before = work.out();
    work.options.replace = true;
    const auto refuses = [&](const std::string& message) {
        CHECK(contains(work.outcome(), message));
        CHECK((work.out() == before));
    };
    // A foreign shard, of a foreign name or of ours, a link, a directory.
    for (const char* name : {"mine.bin", "train_000099.bin", "a.idx", "train_7.bin"}) {
        with(work.dir / "out", name);
        CHECK(
            contains(work.outcome(), fmt::format("x/out already holds token shards ({}) that its shards.json "
                                                 "does not list",
                                                 name)));
        CHECK(get(work.dir / "out/" + name) == "precious");
        fs::remove(work.dir / "out/" + name);
    }
    fs::create_symlink(work.dir / "text.jsonl", work.dir / "out/train_000099.bin");
    CHECK(contains(work.outcome(), "2: x/out already holds token shards (train_000099.bin)"));
    fs::remove(work.dir / "out/train_000099.bin");
    // A shard of ours in the place of another.
    fs::copy_file(work.dir / "out/train_000001.bin", work.dir / "other");
    fs::rename(work.dir / "out/train_000000.bin", work.dir / "out/train_000001.bin");
    fs::rename(work.dir / "other", work.dir / "out/train_000000.bin");
    CHECK(contains(work.outcome(), "already holds token shards (train_000000.bin) that its shards.json"));
    set_contents(work.dir / "out", before);
    // Texts that are not there, hold none, or end in the middle.
    work.options.source.inputs = {work.dir / "missing"};
    refuses("3: cannot open x/missing");
    put(work.dir / "text.jsonl", lines(16, "new") + "{\"text\": 1}\n");
    work.options.source.inputs = {work.dir / "text.jsonl"};
    const std::string failed = work.outcome();
    CHECK(contains(failed, "3: x/text.jsonl line 17: field text is not a string"));
    Contents left = work.out();
    std::erase_if(left, [](const auto& file) { return file.first.starts_with("unfinished.new/"); });
    CHECK((left == before));
    put(work.dir / "text.jsonl", lines(16, "new"));
    text::tokenize(work.options);
    CHECK(!fs::exists(work.dir / "out/unfinished.new"));
    CHECK((work.out() == work.whole()));
}

TEST_CASE("what is not of this program in unfinished.new is not removed") {
    Workplace work;
    text::tokenize(work.options);
    work.options.replace = true;
    fs::create_directory(work.dir / "out/unfinished.new");
    with(work.dir / "out/unfinished.new", "notes.txt");
    CHECK(work.outcome() ==
          "2: x/out/unfinished.new holds notes.txt, which is not of this program; move it away");
    CHECK(get(work.dir / "out/unfinished.new/notes.txt") == "precious");
    fs::remove_all(work.dir / "out/unfinished.new");
    fs::create_directory_symlink(work.dir.path(), work.dir / "out/unfinished.new");
    CHECK(contains(work.outcome(), "is not a directory that this program made"));
    fs::remove(work.dir / "out/unfinished.new");
    CHECK(work.outcome() == "no error");
}

TEST_CASE("a directory that another process fills is refused, also through a link") {
    Workplace work;
    fs::create_directory(work.dir / "out");
    fs::create_directory_symlink(work.dir / "out", work.dir / "link");
    const text::ShardOutput first({.directory = work.dir / "out"});
    for (const char* name : {"out", "link"}) {
        work.options.output = work.dir / name;
        CHECK(work.outcome() ==
              fmt::format("10: x/{} is in use by another process that writes shards", name));
    }
    CHECK(anonymous(error_of([&] {
                        text::synthesize({.output = work.dir / "out", .train_bytes = 1, .val_bytes = 0});
                    }),
                    work.dir.path()) == "10: x/out is in use by another process that writes shards");
}

TEST_CASE("a text that changed under the same name and size is not mixed with its former self") {
    Workplace work;
    const std::string path = work.dir / "text.jsonl", text = get(path);
    const Contents whole = work.whole();
    const auto time = fs::last_write_time(path);
    const auto interrupt = [&] {
        fs::remove_all(work.dir / "out");
        FaultDisk disk(Fault::crash, 60);
        work.options.disk = &disk;
        CHECK(contains(work.outcome(), "5: "));
        work.options.disk = &io::Disk::system();
    };
    const std::string refusal = "3: x/text.jsonl changed since the unfinished shards in x/out were begun";
    interrupt();
    std::string other = text;
    other[10] = 'W';
    put(path, other);
    fs::last_write_time(path, time);
    CHECK(work.outcome() == refusal);
    other = text;
    other[text.size() - 10] = 'W';
    put(path, other);
    fs::last_write_time(path, time);
    CHECK(work.outcome() == refusal);
    put(path, text);
    fs::last_write_time(path, time + std::chrono::seconds(1));
    CHECK(work.outcome() == refusal);
    fs::last_write_time(path, time);
    CHECK(text::tokenize(work.options).resumed_shards > 0);
    CHECK((work.out() == whole));

    interrupt();
    text::TokenizeOptions options = work.options;
    options.max_shard_tokens = 61;
    CHECK(
        contains(error_of([&] { text::tokenize(options); }), "unfinished shards of other texts or options"));
    put(path, other);
    fs::last_write_time(path, time);
    work.options.replace = true;  // begins anew
    CHECK(text::tokenize(work.options).resumed_shards == 0);
    fs::remove_all(work.dir / "whole");
    CHECK((work.out() == work.whole()));
}

TEST_CASE("the first and the last MiB of a long text are part of what a call continues") {
    const TempDir dir;
    std::string text(size_t{5} << 19, 'x');
    put(dir / "text", text);
    const auto time = fs::last_write_time(dir / "text");
    text::Excluded excluded;
    const auto hash_with = [&](size_t at) {
        text[at] = 'y';
        put(dir / "text", text);
        fs::last_write_time(dir / "text", time);
        text[at] = 'x';
        return text::TextRequest::of("", text::find_sources({.inputs = {dir / "text"}}, excluded)).hash;
    };
    const size_t mib = size_t{1} << 20;
    const uint64_t middle = hash_with(mib);  // read by nobody
    CHECK(middle == hash_with(text.size() - mib - 1));
    for (const size_t at : {size_t{0}, mib - 1, text.size() - mib, text.size() - 1})
        CHECK(hash_with(at) != middle);
}

TEST_CASE("a corpus that was killed is not taken for a whole one, and can be replaced") {
    const TempDir dir;
    const text::SynthOptions options{
        .output = dir / "out", .train_bytes = 30000, .val_bytes = 1000, .max_shard_tokens = 5000};
    {
        text::ShardOutput output({.directory = dir / "out"});
        data::ShardSet shards(output.place(), "train", 1, data::byte_header());
        shards.begin_document();
        shards.append_bytes("x");
        shards.end_document();
        output.record("train", {1});
        CHECK(contains(error_of([&] { data::TokenStream::open({dir / "out"}, {}); }), "unfinished"));
    }
    CHECK(fs::is_empty(dir / "out"));  // it cannot be continued
    text::synthesize(options);
    CHECK(contains(error_of([&] { text::synthesize(options); }), "already holds token shards"));
    const Contents first = contents_of(dir / "out");
    text::SynthOptions again = options;
    again.replace = true;
    text::synthesize(again);
    CHECK((contents_of(dir / "out") == first));
}

TEST_CASE("a damaged list of shards names no file outside the directory") {
    const TempDir dir;
    for (const char* name : {"../train_000000.bin", "train_000000.bin/x", "train_0.bin", "/etc/passwd", ""}) {
        put(dir / "shards.json", fmt::format("{{\"files\": {{\"{}\": \"0123456789abcdef\"}}}}", name));
        CHECK(contains(error_of([&] { data::ShardList::read(dir.path()); }), "shards.json is damaged"));
    }
    put(dir / "shards.json", R"({"format": 2, "files": {}})");
    CHECK(
        contains(error_of([&] { data::ShardList::read(dir.path()); }), "reads format 1 of this file, not 2"));
    CHECK(data::ShardName::parse("train_000000.bin")->number == 0);
    CHECK(data::ShardName::parse("val_1234567.bin")->number == 1234567);
    for (const char* name : {"train_0000000.bin", "train_-00001.bin", "train_00001.bin", "val_",
                             "train_000001.bin.x", "valtrain_000001.bin", "train_ 00001.bin"})
        CHECK(!data::ShardName::parse(name));
}
