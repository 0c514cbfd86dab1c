// Configs of the program, with the rules between their fields.
#include "fuzz/config_target.h"
#include "train/experiment.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    longreach::fuzz::resolve_twice<longreach::train::Experiment>(data, size);
    return 0;
}
