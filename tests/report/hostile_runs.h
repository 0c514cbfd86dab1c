// Run directories in which every text is an attack on whoever shows it: markup, attributes,
// escape sequences of terminals.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "io/file.h"
#include "io/temp_dir.h"

namespace longreach::test {

// None has a comma or a newline, so that each fits into a cell of a CSV file.
inline const std::vector<std::string>& hostile_texts() {
    static const std::vector<std::string> texts{
        "\"><script>window.pwned=1</script>",
        "'onload='window.pwned=1' x='",
        "\" onmouseover=\"window.pwned=1\" x=\"",
        "</title></style></script><img src=x onerror=window.pwned=1>",
        "<svg><animate onbegin=window.pwned=1 attributeName=x dur=1s>",
        "javascript:window.pwned=1",
        "x --><script>window.pwned=1</script><!-- ]]>",
        "\x1b]0;pwned\x07\x1b[2J\x1b[31m\x7f",
        "\xc2\x9b"
        "31m\xe2\x80\xae",
        "x\rok 4 of 4",
    };
    return texts;
}

// As the name of a file: no slash.
inline std::string as_file_name(std::string text) {
    for (char& c : text)
        if (c == '/') c = '|';
    return text;
}

// A run whose every text is `bad`; `seed` only makes numbers differ.
inline void write_hostile_run(const std::string& path, const std::string& bad, int seed) {
    using json::Value;
    io::make_directories(path);
    const auto object = [&](const std::string& key, Value value) {
        Value out = Value::object();
        out.set(key, std::move(value));
        return out;
    };
    Value config = object("run", object("name", bad));
    config.set("model", object(bad, bad))
        .set("data", object("task", object("kind", bad)))
        .set("stages", Value::array({object("context", 64), object("steps", bad)}));
    put(io::join_path(path, "config.json"), json::write(config, json::Style::pretty));
    put(io::join_path(path, "origins.json"), json::write(object("model." + bad, bad), json::Style::pretty));
    Value build = object("version", bad);
    build.set("compiler", bad).set("system", bad).set(bad, bad);
    put(io::join_path(path, "build.json"), json::write(build, json::Style::pretty));
    std::string metrics, timing;
    for (int step = 1; step <= 20; ++step) {
        Value line = object("step", step);
        line.set("tokens", step * 64).set("context", 64).set("loss", 2.0 + seed).set("grad_norm", 1.0);
        line.set("lr", 1.0).set(bad, bad);
        metrics += json::write(line, json::Style::compact) + "\n";
        timing += json::write(object("step", step).set("tokens_per_second", 10).set(bad, bad),
                              json::Style::compact) +
                  "\n";
    }
    put(io::join_path(path, "metrics.jsonl"), metrics);
    put(io::join_path(path, "timing.jsonl"), timing);
    put(io::join_path(path, "log.txt"), "12:00:00 warning: " + bad + "\n");
    put(io::join_path(path, "lock"), bad);
    const std::string val =
        "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,top1_error,fingerprint," +
        bad +
        fmt::format(
            "\n10,640,64,{0},0.1,640,4,1,0.5,0.1,{1},{1}\n20,640,64,{0},0.1,640,4,1,0.5,0.1,{1},{1}\n"
            "20,640,128,{0},0.1,640,4,1,0.5,0.1,{1},{1}\n",
            2 + seed, bad);
    const std::string tasks = fmt::format(
        "step,task,length,depth,samples,accuracy,accuracy_error,margin,margin_error,loss,fingerprint\n"
        "20,{0},64,50,10,0.5,0.1,1,0.1,2,{0}\n20,{0},128,50,10,0.5,0.1,1,0.1,2,{0}\n",
        bad);
    std::string probe = "step,length,layer,head,bin,statistic,value,count\n";
    for (const int bin : {1, 2, 4})
        probe += fmt::format("20,64,0,0,{0},{1},{0},1\n20,64,0,0,{0},entropy,{0},1\n", bin, bad);
    probe += fmt::format("20,0,0,0,0,scalar.{},1,1\n20,64,0,-1,0,{},1,1\n", bad, bad + "\xff");
    const std::string positions = fmt::format(
        "step,length,by,bucket,loss,scored,fingerprint\n20,64,sequence,1,2,10,{0}\n20,64,{0},2,2,10,{0}\n",
        bad);
    const std::string key_tokens = fmt::format(
        "step,length,part,loss,standard_error,scored,from,to,judge,fingerprint,judge_name,parts\n"
        "20,64,key,2,0.1,10,64,128,{0},{0},{0},{0}\n20,128,key,1,0.1,10,64,128,{0},{0},{0},{0}\n"
        "20,64,{0},2,0.1,10,64,128,{0},{0},{0},{0}\n",
        bad);
    for (const std::string& at :
         {path, io::join_path(path, "eval/plain"), io::join_path(path, "eval/other")}) {
        io::make_directories(at);
        put(io::join_path(at, "val.csv"), val);
        put(io::join_path(at, "tasks.csv"), tasks);
        put(io::join_path(at, "probe.csv"), probe);
        put(io::join_path(at, "positions.csv"), positions);
        put(io::join_path(at, "key_tokens.csv"), key_tokens);
        put(io::join_path(at, "request.json"), json::write(object(bad, bad), json::Style::pretty));
        put(io::join_path(at, "sample.txt"), bad + "\n" + bad);
    }
    // Other tokens: shown apart, under a measure that is hostile as well.
    io::make_directories(io::join_path(path, "eval/apart"));
    put(io::join_path(path, "eval/apart/val.csv"),
        "step,tokens,length,loss,standard_error,scored,documents,fingerprint\n20,640,64,2,0.1,64,2,x" + bad +
            "\n");
}

// A sweep of two variants and two seeds, all of whose names are `bad`. Returns the directories of its runs.
inline std::vector<std::string> write_hostile_sweep(const std::string& path, const std::string& bad) {
    using json::Value;
    io::make_directories(path);
    Value runs = Value::array();
    std::vector<std::string> directories;
    for (const char* variant : {"a", "b"})
        for (int seed = 1; seed <= 2; ++seed) {
            const std::string name = fmt::format("{}{}.seed{}", as_file_name(bad), variant, seed);
            Value run = Value::object();
            run.set("variant", bad + variant).set("seed", seed).set("directory", name);
            run.set("evaluations", Value::array({"plain", bad, "other"}));
            runs.push(run);
            directories.push_back(io::join_path(path, name));
            write_hostile_run(directories.back(), bad, seed);
        }
    Value absent = Value::object();
    absent.set("variant", bad).set("seed", 9).set("directory", as_file_name(bad) + "-absent");
    runs.push(absent);
    Value sweep = Value::object();
    sweep.set("name", bad).set("baseline", bad).set("runs", runs).set("seeds", Value::array({1, 2}));
    Value contrasts = Value::array();
    for (const char* of : {"loss", "gap", "margin"})
        contrasts.push(Value::object({{"name", bad},
                                      {"claim", bad},
                                      {"arms", Value::array({bad + "a", bad + "b"})},
                                      {"at", 64},
                                      {"of", of},
                                      {"margin", 0.05},
                                      {"primary", of[0] != 'g'},
                                      {"evaluation", of[0] == 'l' ? "plain" : bad},
                                      {"task", bad},
                                      {"depth", -1},
                                      {"expect", "negative"},
                                      {"trained_at", 32}}));
    sweep.set("contrasts", std::move(contrasts));
    put(io::join_path(path, "sweep.json"), json::write(sweep, json::Style::pretty));
    return directories;
}

}  // namespace longreach::test
