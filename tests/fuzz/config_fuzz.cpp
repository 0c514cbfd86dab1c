// Configs of few fields, of every kind: what reads them is the same for all configs (experiment_fuzz.cpp: the program's).
#include "config/sample.h"
#include "fuzz/config_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    longreach::fuzz::resolve_twice<longreach::sample::Experiment>(data, size);
    return 0;
}
