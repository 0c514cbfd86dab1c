// Runs to be attacked: short ones, and one that goes on until the attack ends it.
#pragma once

#include <string>
#include <vector>

#include "commands/process.h"
#include "io/checkpoint_dir.h"
#include "train/tiny_run.h"

namespace longreach::test {

class Target {
  public:
    Target() {
        make_corpus(dir_ / "data");
        put(config_, tiny_config(dir_.path(), "run"));
    }
    // 12 steps.
    std::vector<std::string> command(const std::string& name,
                                     const std::vector<std::string>& set = {}) const {
        std::vector<std::string> all{"train", config_, "--set", "run.name=" + name};
        for (const std::string& s : set) {
            all.push_back("--set");
            all.push_back(s);
        }
        return all;
    }
    // Minutes of steps, a checkpoint every 5 and a validation every 20.
    std::vector<std::string> endless(const std::string& name) const {
        return command(name, {"stages=[{\"steps\":1000000,\"context\":16}]", "checkpoint.every=5",
                              "eval.every=20", "checkpoint.keep=3"});
    }
    std::string path(const std::string& name) const { return dir_ / name; }
    const std::string& root() const { return dir_.path(); }
    Finished run(const std::vector<std::string>& arguments, const Process::Options& options = {}) const {
        return test::run(output_, arguments, options);
    }
    const TempDir& output() const { return output_; }

    bool has_checkpoints(const std::string& name, size_t count = 1) const {
        const std::string root = io::join_path(path(name), "checkpoints");
        return io::kind_of(root, io::Links::refuse) == io::PathKind::directory &&
               io::checkpoint_steps(root).size() >= count;
    }

  private:
    TempDir dir_, output_;
    std::string config_ = dir_ / "config.json";
};

inline const Target& target() {
    static const Target t;
    return t;
}

}  // namespace longreach::test
