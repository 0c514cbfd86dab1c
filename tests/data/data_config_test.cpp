#include "data/data_config.h"

#include <doctest/doctest.h>

#include <set>

#include "config/acts.h"

#include "io/temp_dir.h"

using namespace longreach;

namespace {

class Collected final : public config::Problems {
  public:
    explicit Collected(std::set<std::string, std::less<>> set = {}) : set_(std::move(set)) {}
    bool is_set(std::string_view path) const override { return set_.contains(path); }
    void add(std::string_view path, std::string message, std::string_view other) override {
        text += fmt::format("{} ({}): {}\n", path, other, message);
    }
    std::string text;

  private:
    std::set<std::string, std::less<>> set_;
};

std::string problems_of(const data::DataConfig& config, std::set<std::string, std::less<>> set = {}) {
    Collected problems(std::move(set));
    data::DataConfig held = config;
    config::check_acts(config::describe_fields([&](config::Fields& f) { f.section("data", held, {}); }),
                       problems);
    config.check(problems, 50304);
    return problems.text;
}

}  // namespace

TEST_CASE("data config: contradictions are named at their key") {
    data::DataConfig config;
    CHECK(problems_of(config).empty());
    CHECK(test::contains(problems_of(config, {"data.width"}), "data.width (data.format): has no effect"));
    CHECK(test::contains(problems_of(config, {"data.boundary.side"}),
                         "data.boundary.side (data.boundary.token)"));
    config.format = data::DataFormat::raw;
    CHECK(test::contains(problems_of(config), "data.width (data.format): raw shards need 2 or 4"));
    CHECK(test::contains(problems_of(config), "data.boundary.token (data.document_mask)"));
    config.width = 2;
    config.document_mask = false;
    CHECK(problems_of(config, {"data.width"}).empty());
    config.boundary.token = 50304;
    CHECK(test::contains(problems_of(config),
                         "data.boundary.token (model.vocab_size): token 50304 is outside"));
}

TEST_CASE("data config: every field reaches the stream options") {
    data::DataConfig config;
    config.format = data::DataFormat::raw;
    config.width = 4;
    config.boundary = {7, data::BoundarySide::after};
    const data::StreamOptions options = config.stream_options(100);
    CHECK(options.shard.raw);
    CHECK(options.shard.width == 4);
    CHECK(options.vocab == 100);
    CHECK(options.boundary_token == 7);
    CHECK(options.side == data::BoundarySide::after);
    CHECK(options.need_documents);
    config.document_mask = false;
    CHECK_FALSE(config.stream_options(100).need_documents);
}
