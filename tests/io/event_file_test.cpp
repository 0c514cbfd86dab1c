// Event files, byte for byte and as an independent reader sees them.
#include "io/event_file.h"

#include <doctest/doctest.h>

#include <array>
#include <cerrno>
#include <limits>

#include "io/event_reader.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::string from_hex(std::string_view hex) {
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
    return bytes;
}

const std::string first_record =
    from_hex("1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
const std::string scalar_record =
    from_hex("1a00000000000000129bd82d09000000000000004010072a0d0a0b0a046c6f73731500002040c2dfec60");

// One of everything.
std::string all_kinds(const std::string& directory) {
    io::EventFile file(directory, 1);
    file.session_start(7, 2);
    file.scalar("train/loss", int64_t{1} << 40, 0.1, 3);
    file.histogram("weights/r", 8, std::array{-1.0, 0.5, 2.0}, std::array{3.0, 4.0}, 4);
    file.text("config", 9, "# caf\xc3\xa9", 5);
    file.hyperparameters("name", {{"lr", 0.5}, {"none", 0.0}, {"tied", false}, {"kind", std::string("muon")}},
                         {"val/16", "val/64"}, 6);
    file.layout("validation", {{"by length", {"val/16", "val/64"}}}, 7);
    file.session_end(io::SessionEnd::success, 8);
    file.flush();
    return get(file.path());
}

// Lets `left` bytes through, then the disk is full.
class SmallDisk final : public io::Disk {
  public:
    explicit SmallDisk(size_t left) : left_(left) {}
    ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) override {
        if (left_ == 0) {
            errno = ENOSPC;
            return -1;
        }
        const size_t part = std::min(size, left_);
        left_ -= part;
        return io::Disk::pwrite(fd, data, part, offset);
    }

  private:
    size_t left_;
};

}  // namespace

TEST_CASE("events: checksums are masked as other readers expect") {
    CHECK(io::masked_crc32c("123456789") == 0xC78AB0E5u);
    CHECK(io::masked_crc32c("") == 0xA282EAD8u);
    std::string text;
    for (int i = 0; i < 600; ++i) {
        CHECK(io::masked_crc32c(text) == slow_masked_crc(text));
        text += static_cast<char>(i * i);
    }
}

TEST_CASE("events: the first record and a scalar are the published bytes, and appear at flush") {
    const TempDir dir;
    io::EventFile file(dir.path(), 1.0);
    CHECK(get(file.path()).empty());
    file.flush();
    CHECK((get(file.path()) == first_record));
    file.scalar("loss", 7, 2.5, 2.0);
    CHECK((get(file.path()) == first_record));
    file.flush();
    CHECK((get(file.path()) == first_record + scalar_record));
    file.flush();
    CHECK((get(file.path()) == first_record + scalar_record));
}

TEST_CASE("events: everything that is written is read back") {
    const TempDir dir;
    const std::vector<Event> events = events_of(all_kinds(dir.path()));
    REQUIRE(events.size() == 9);
    for (size_t i = 0; i < events.size(); ++i) CHECK(events[i].wall_time == (i < 6 ? i + 1 : i));
    CHECK(events[0].version == "brain.Event:2");
    CHECK(events[1].session == 1);
    CHECK(events[1].step == 7);

    CHECK(events[2].tag == "train/loss");
    CHECK(events[2].step == int64_t{1} << 40);
    CHECK(events[2].scalar() == 0.1f);

    CHECK(events[3].plugin == "histograms");
    CHECK(events[3].step == 8);
    CHECK(events[3].tensor().integer(1) == 2);  // double
    const Decoded shape = events[3].tensor().message(2);
    REQUIRE(shape.all(2).size() == 2);
    CHECK(Decoded(shape.all(2)[0]).integer(1) == 2);
    CHECK(Decoded(shape.all(2)[1]).integer(1) == 3);
    const std::string rows = events[3].tensor().text(4);
    REQUIRE(rows.size() == 6 * sizeof(double));
    const std::array expected{-1.0, 0.5, 3.0, 0.5, 2.0, 4.0};
    for (size_t i = 0; i < expected.size(); ++i)
        CHECK(number_at<double>(rows, i * sizeof(double)) == expected[i]);

    CHECK(events[4].plugin == "text");
    CHECK(events[4].step == 9);
    CHECK(events[4].tensor().integer(1) == 7);  // string
    CHECK(events[4].tensor().text(8) == "# caf\xc3\xa9");

    for (size_t i : {5, 6, 8}) {
        CHECK(events[i].plugin == "hparams");
        CHECK(events[i].tensor().integer(1) == 1);  // an empty tensor of floats
        CHECK(Decoded(events[i].tensor().message(2).text(2)).integer(1) == 0);
    }
    CHECK(events[5].tag == "_hparams_/experiment");
    const Decoded experiment = Decoded(events[5].content()).message(2);
    CHECK(experiment.float64(3) == 6);
    CHECK(experiment.text(6) == "name");
    std::string infos, metrics;
    for (const std::string& info : experiment.all(4))
        infos += fmt::format("{}:{} ", Decoded(info).text(1), Decoded(info).integer(4));
    CHECK(infos == "lr:3 none:3 tied:2 kind:1 ");
    for (const std::string& info : experiment.all(5)) metrics += Decoded(info).message(1).text(2) + " ";
    CHECK(metrics == "val/16 val/64 ");

    CHECK(events[6].tag == "_hparams_/session_start_info");
    const Decoded session = Decoded(events[6].content()).message(3);
    CHECK(session.text(4) == "name");
    CHECK(session.float64(5) == 6);
    std::map<std::string, Decoded> values;
    for (const std::string& entry : session.all(1))
        values.emplace(Decoded(entry).text(1), Decoded(entry).message(2));
    REQUIRE(values.size() == 4);
    CHECK(values.at("lr").float64(2) == 0.5);
    CHECK(values.at("none").has(2));  // present though 0
    CHECK(values.at("tied").has(4));
    CHECK(values.at("tied").integer(4) == 0);
    CHECK(values.at("kind").text(3) == "muon");

    CHECK(events[7].tag == "custom_scalars__config__");
    CHECK(events[7].plugin == "custom_scalars");
    const Decoded category = Decoded(events[7].tensor().text(8)).message(2);
    CHECK(category.text(1) == "validation");
    CHECK(category.message(2).text(1) == "by length");
    CHECK(category.message(2).message(2).all(1) == std::vector<std::string>{"val/16", "val/64"});

    CHECK(events[8].tag == "_hparams_/session_end_info");
    const Decoded end = Decoded(events[8].content()).message(4);
    CHECK(end.integer(1) == 1);
    CHECK(end.float64(2) == 8);
}

TEST_CASE("events: protoc, where there is one, decodes every record") {
    if (std::system("command -v protoc >/dev/null 2>&1") != 0) return;
    const TempDir dir;
    const Records records = read_records(all_kinds(dir.path()));
    CHECK(records.payloads.size() == 9);
    const std::string command =
        "protoc --decode_raw <" + (dir / "payload") + " >" + (dir / "text") + " 2>/dev/null";
    for (const std::string& payload : records.payloads) {
        put(dir / "payload", payload);
        CHECK(std::system(command.c_str()) == 0);
        CHECK(contains(get(dir / "text"), "1: 0x"));  // wall_time
    }
}

TEST_CASE("events: a file cut at any byte still gives every whole record before the cut") {
    const TempDir dir;
    const std::string bytes = all_kinds(dir.path());
    const Records whole = read_records(bytes);
    REQUIRE(whole.torn == 0);
    size_t records = 0, begin = 0;
    for (size_t size = 0; size < bytes.size(); ++size) {
        if (size == begin + 16 + whole.payloads[records].size()) {
            begin = size;
            ++records;
        }
        const Records cut = read_records(std::string_view(bytes).substr(0, size));
        REQUIRE(cut.payloads.size() == records);
        REQUIRE(cut.torn == size - begin);
    }
}

TEST_CASE("events: no name sorts before one that is there, and no file is taken over") {
    const TempDir dir;
    std::vector<std::string> names;
    // The clock stands still, goes back and goes on.
    for (const double time : {1000.5, 1000.5, 10.0, 1001.0, 5e9, 1e12, 1e12, 2000.0, -5.0})
        names.push_back(io::base_name(io::EventFile(dir.path(), time).path()));
    CHECK(names[0].starts_with("events.out.tfevents.0000001000."));
    CHECK(names[1].starts_with("events.out.tfevents.0000001001."));
    CHECK(names[4].starts_with("events.out.tfevents.5000000000."));
    CHECK(names[0].ends_with(fmt::format(".{}.0", ::getpid())));
    CHECK(io::list_directory(dir.path()) == names);

    const TempDir others;
    for (const char* name : {"events.out.tfevents.99999999999.x.1.0", "events.out.tfevents.",
                             "events.out.tfevents.12x", "notes"})
        put(others / name, "");
    CHECK(io::base_name(io::EventFile(others.path(), 1000).path())
              .starts_with("events.out.tfevents.0000001000."));
}

TEST_CASE("events: a full disk is an error and leaves whole records and one torn one") {
    const TempDir dir;
    for (const size_t space : {size_t{0}, size_t{17}, first_record.size(), first_record.size() + 1}) {
        CAPTURE(space);
        SmallDisk disk(space);
        io::EventFile file(dir.path(), 1.0, disk);
        file.scalar("loss", 7, 2.5, 2.0);
        CHECK(contains(error_of([&] { file.flush(); }), "5: "));
        CHECK((get(file.path()) == (first_record + scalar_record).substr(0, space)));
    }
    CHECK(contains(error_of([&] { io::EventFile(dir / "nowhere", 1.0); }), "nowhere"));
}

TEST_CASE("events: values that no float holds are written as what is nearest") {
    const TempDir dir;
    io::EventFile file(dir.path(), 1.0);
    constexpr double inf = std::numeric_limits<double>::infinity();
    for (const double value : {inf, -inf, std::numeric_limits<double>::quiet_NaN(), 1e300, 0.0})
        file.scalar("x", 0, value, 1.0);
    file.flush();
    const std::vector<Event> events = events_of(get(file.path()));
    REQUIRE(events.size() == 6);
    CHECK(events[1].scalar() == inf);
    CHECK(events[2].scalar() == -inf);
    CHECK(events[3].scalar() != events[3].scalar());
    CHECK(events[4].scalar() == inf);
    CHECK(events[5].value.has(2));
    CHECK(events[5].scalar() == 0);
}
