// From pretraining through a task to its score, by command line.
#include <doctest/doctest.h>

#include "commands/process.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("a run is fine-tuned on a task and scored, by depth and length, under a label") {
    const TempDir dir;
    make_corpus(dir / "data");
    put(dir / "config.json", tiny_config(dir.path(), "base"));
    REQUIRE(run(dir, {"train", dir / "config.json", "--set", "data.document_mask=false"}).code == 0);
    const Finished tuned =
        run(dir, {"train", dir / "config.json", "--set", "run.name=tuned", "--set",
                  "run.init_from=" + (dir / "base"), "--set", "data.document_mask=false", "--set",
                  "data.task.kind=needle", "--set", "stages=[{\"steps\":3,\"context\":64}]", "--set",
                  "batch.micro_tokens=64"});
    REQUIRE_MESSAGE(tuned.code == 0, tuned.err);
    CHECK(tuned.out.find("samples of needle") != std::string::npos);
    CHECK(get(dir / "tuned/tasks.csv").find("\n3,needle,64,,64,") != std::string::npos);

    const std::vector<std::string> request{"eval",      dir / "tuned", "--tasks",  "needle,copy",
                                           "--lengths", "64,128",      "--depths", "0,100",
                                           "--samples", "5",           "--label",  "needles"};
    const Finished f = run(dir, request);
    REQUIRE_MESSAGE(f.code == 0, f.err);
    CHECK(f.out.find("accuracy of needle by depth and length") != std::string::npos);
    const std::string label = dir / "tuned/eval/needles/", tasks = get(label + "tasks.csv");
    for (const char* row :
         {"\n3,needle,64,0,5,", "\n3,needle,64,100,5,", "\n3,needle,128,100,5,", "\n3,copy,128,,5,"})
        CHECK(tasks.find(row) != std::string::npos);
    CHECK(io::kind_of(label + "val.csv", io::Links::refuse) == io::PathKind::missing);
    CHECK(get(label + "request.json").find("\"needle\"") != std::string::npos);

    // The same again gives the same, with losses when they are asked for, and parameters can be changed.
    REQUIRE(run(dir, request).code == 0);
    CHECK(get(label + "tasks.csv") == tasks);
    std::vector<std::string> more = request;
    more.insert(more.end(), {"--tokens", "256", "--set", "data.task.digits=3"});
    REQUIRE(run(dir, more).code == 0);
    CHECK(get(label + "tasks.csv") != tasks);
    CHECK(io::kind_of(label + "val.csv", io::Links::refuse) == io::PathKind::file);

    const Finished unknown = run(dir, {"eval", dir / "tuned", "--tasks", "needles"});
    CHECK(unknown.code == 2);
    CHECK(unknown.err.find("needle_s3") != std::string::npos);
    const Finished short_one = run(dir, {"eval", dir / "tuned", "--tasks", "needle_s3", "--lengths", "64"});
    CHECK(short_one.code == 2);
    CHECK(short_one.err.find("it needs") != std::string::npos);
}
