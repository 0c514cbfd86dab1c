// Frames and heartbeats as they arrive from a socket. A heartbeat that is accepted comes
// back when sent again.
#include "ranks/channel.h"
#include "ranks/control.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view bytes = text_of(data, size);
    accepts([&] {
        std::string buffer(bytes);
        for (size_t left = buffer.size();
             const auto message = ranks::take_frame(buffer, ranks::stranger_frame_bytes);) {
            holds(!message->empty() && message->size() <= ranks::stranger_frame_bytes,
                  "a frame beyond its limit");
            holds(buffer.size() < left, "a frame that took nothing");
            left = buffer.size();
        }
    });
    accepts([&] {
        const ranks::CollectiveState state = ranks::decode_beat(bytes);
        const ranks::CollectiveState again = ranks::decode_beat(ranks::encode_beat(state, 0));
        holds(again.step == state.step && again.begun == state.begun && again.busy == state.busy,
              "a heartbeat changes when sent again");
    });
    return 0;
}
