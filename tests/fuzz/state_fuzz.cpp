// A checkpoint's state.json.
#include "fuzz/target.h"
#include "train/train_state.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    accepts([&] {
        const json::Value value =
            json::parse(text_of(data, size), "state.json", {.code = ExitCode::checkpoint});
        const train::TrainState state = train::TrainState::from_json(value);
        const json::Value written = state.to_json();
        holds(train::TrainState::from_json(written).to_json() == written, "the state changes when written");
    });
    return 0;
}
