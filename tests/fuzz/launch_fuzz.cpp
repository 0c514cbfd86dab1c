// What a launcher says in environment variables: lines of NAME=value; and its lists of nodes and tasks.
#include "ranks/launch.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text = text_of(data, size);
    accepts([&] { ranks::read_node_list(text); });
    accepts([&] { ranks::expand_task_counts(text); });
    ranks::Environment environment;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = text.substr(begin, end - begin);
        const size_t equals = line.find('=');
        if (equals != std::string_view::npos)
            environment.emplace(line.substr(0, equals), line.substr(equals + 1));
        begin = end + 1;
    }
    accepts([&] {
        const ranks::RankPlace place = ranks::place_from(environment);
        holds(place.rank >= 0 && place.rank < place.ranks, "a rank outside its run");
        holds(place.local_rank >= 0 && place.local_rank < place.local_ranks, "a rank outside its node");
        ranks::run_token(place, environment);
    });
    return 0;
}
