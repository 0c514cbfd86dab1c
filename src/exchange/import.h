// A model that another program trained becomes a run of this one: a directory with config.json and one checkpoint, of
// step 0, which eval, generate, probe and train (run.init_from) take like any other.
#pragma once

#include <string>
#include <vector>

#include "io/checkpoint_dir.h"

namespace longreach::exchange {

struct ImportOptions {
    std::string directory;              // config.json, safetensors and perhaps a tokenizer; or a GGUF file
    std::string output;                 // the run; empty: runs/NAME, NAME that of the directory or the file
    std::vector<std::string> set = {};  // fields of the config, "eval.lengths=[1024]"
    bool replace = false;               // an earlier run; other files in its directory stay
};

struct ImportResult {
    std::string family, run;
    int64_t parameters = 0;
    std::string tokenizer;           // one line; empty: the directory has none
    std::vector<std::string> notes;  // what the user should know
    std::vector<std::string> kept;   // in the directory, not of a run
};

ImportResult import_model(const ImportOptions& options, const io::Notice& notice);

std::string to_text(const ImportResult& result);

}  // namespace longreach::exchange
