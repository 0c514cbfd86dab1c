#include "ranks/launch.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "ranks/token.h"

namespace longreach::ranks {

namespace {

constexpr int most_ranks = 1 << 16;  // far above any machine; bounds what a typing error can ask for
constexpr size_t most_hosts = 65536;
constexpr int first_port = 15000, ports = 15000;  // below the range from which Linux takes outgoing ports

// SLURM numbers what is not a task of srun (batch script, interactive shell, extern step) at the
// top of 32 bits.
constexpr int64_t first_special_step = 0xfffffff0;

// `text` whole, if it is a number from low to high.
template <class Integer>
std::optional<Integer> whole_number(std::string_view text, Integer low, Integer high) {
    Integer number = 0;
    const char* end = text.data() + text.size();
    const auto [after, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || after != end || number < low || number > high) return std::nullopt;
    return number;
}

class Variables {
  public:
    explicit Variables(const Environment& environment) : environment_(environment) {}

    bool has(const std::string& name) const { return environment_.contains(name); }
    std::string text(const std::string& name) const {
        const auto found = environment_.find(name);
        return found == environment_.end() ? std::string() : found->second;
    }
    // "RANK=3", for messages.
    std::string shown_pair(const std::string& name) const {
        return has(name) ? name + "=" + shown(text(name)) : name + " (not set)";
    }
    int64_t integer(const std::string& name, int64_t low, int64_t high) const {
        const std::optional<int64_t> number = whole_number(text(name), low, high);
        require(number.has_value(), ExitCode::usage,
                "the environment variable {} is not a whole number from {} to {}", shown_pair(name), low,
                high);
        return *number;
    }
    int count(const std::string& name) const { return static_cast<int>(integer(name, 1, most_ranks)); }
    int index(const std::string& name) const { return static_cast<int>(integer(name, 0, most_ranks - 1)); }

    // The launcher `who` sets `first` and must then also set the others.
    void need(std::string_view who, const std::string& first, const std::vector<std::string>& others) const {
        for (const std::string& name : others)
            if (!has(name))
                throw Error(ExitCode::usage,
                            fmt::format("{} is set but {} is not: this set of {}'s variables is incomplete",
                                        shown_pair(first), name, who),
                            fmt::format("set {} too, or unset {} to start a single process", name, first));
    }
    [[noreturn]] void contradiction(const std::string& a, const std::string& b,
                                    const std::string& why) const {
        throw Error(ExitCode::usage,
                    fmt::format("the environment contradicts itself: {} but {}: {}", shown_pair(a),
                                shown_pair(b), why),
                    fmt::format("unset the one that does not describe this process"));
    }
    void less(const std::string& index, int a, const std::string& count, int b) const {
        if (a >= b) contradiction(index, count, "the first must be smaller");
    }
    void not_more(const std::string& part, int a, const std::string& whole, int b) const {
        if (a > b) contradiction(part, whole, "the first must not be larger");
    }

  private:
    const Environment& environment_;
};

// What each launcher calls itself in messages, and the variables in which it says the same four things; SLURM
// has its own for the last. A process is one of its ranks if `rank` is set.
struct Names {
    Launcher launcher;
    std::string_view title;
    std::string rank, ranks, local_rank, local_ranks;
};

const std::vector<Names>& launchers() {
    static const std::vector<Names> all = {
        {Launcher::torchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {Launcher::slurm, "SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
        {Launcher::open_mpi, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {Launcher::pmi, "MPICH (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
        {Launcher::pmix, "PMIx", "PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {Launcher::spawn, "--ranks", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {Launcher::none, "no launcher", "", "", "", ""},
    };
    return all;
}

const Names& names_of(Launcher launcher) {
    return *std::find_if(launchers().begin(), launchers().end(),
                         [&](const Names& n) { return n.launcher == launcher; });
}

bool slurm_task(const Variables& v) {
    if (!v.has("SLURM_PROCID")) return false;  // salloc's shell
    if (!v.has("SLURM_STEP_ID")) {
        // A batch script is process 0 of nothing; another number without a step cannot come from SLURM.
        if (v.index("SLURM_PROCID") != 0)
            v.contradiction("SLURM_PROCID", "SLURM_STEP_ID", "srun always sets both");
        return false;
    }
    return v.integer("SLURM_STEP_ID", 0, 0xffffffff) < first_special_step;
}

// srun's count of this step's tasks; SLURM_NTASKS may be the whole allocation's.
std::string slurm_ranks(const Variables& v) {
    return v.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

std::vector<Launcher> present(const Variables& v) {
    std::vector<Launcher> found;
    for (const Names& names : launchers())
        if (names.launcher == Launcher::slurm ? slurm_task(v)
                                              : names.launcher != Launcher::spawn && v.has(names.rank))
            found.push_back(names.launcher);
    return found;
}

// Every other launcher that speaks must name the same rank of as many.
void compare(const Variables& v, Launcher chosen, const RankPlace& place,
             const std::vector<Launcher>& found) {
    const Names& ours = names_of(chosen);
    const std::string our_ranks = chosen == Launcher::slurm ? slurm_ranks(v) : ours.ranks;
    for (const Launcher other : found) {
        if (other == chosen) continue;
        const Names& theirs = names_of(other);
        const std::string their_ranks = other == Launcher::slurm ? slurm_ranks(v) : theirs.ranks;
        const char* why = "they count the ranks of one run";
        // PMIX_RANK comes with srun and Open MPI and has no number of ranks of its own.
        if (other != Launcher::pmix && v.has(their_ranks) && v.count(their_ranks) != place.ranks)
            v.contradiction(our_ranks, their_ranks, why);
        if (v.index(theirs.rank) != place.rank)
            v.contradiction(ours.rank, theirs.rank, "they number the same process");
    }
    if (chosen != Launcher::torchrun && v.has("WORLD_SIZE") && v.count("WORLD_SIZE") != place.ranks)
        v.contradiction(our_ranks, "WORLD_SIZE", "they count the ranks of one run");
}

void read_place(const Variables& v, const Names& names, RankPlace& place) {
    v.need(launcher_name(place.source), names.rank, {names.ranks, names.local_rank, names.local_ranks});
    place.rank = v.index(names.rank);
    place.ranks = v.count(names.ranks);
    place.local_rank = v.index(names.local_rank);
    place.local_ranks = v.count(names.local_ranks);
    place.ranks_from = v.shown_pair(names.ranks);
    v.less(names.rank, place.rank, names.ranks, place.ranks);
    v.less(names.local_rank, place.local_rank, names.local_ranks, place.local_ranks);
    v.not_more(names.local_rank, place.local_rank, names.rank, place.rank);
    v.not_more(names.local_ranks, place.local_ranks, names.ranks, place.ranks);
    place.node = place.one_node() ? 0 : -1;
}

void read_slurm(const Variables& v, RankPlace& place) {
    const std::string ranks = slurm_ranks(v);
    const std::string nodes = v.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const std::string counts =
        v.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
    v.need("SLURM", "SLURM_PROCID", {ranks, "SLURM_LOCALID", "SLURM_NODEID", nodes, counts, "SLURM_JOB_ID"});
    place.rank = v.index("SLURM_PROCID");
    place.ranks = v.count(ranks);
    place.local_rank = v.index("SLURM_LOCALID");
    place.node = v.index("SLURM_NODEID");
    place.ranks_from = v.shown_pair(ranks);
    v.less("SLURM_PROCID", place.rank, ranks, place.ranks);
    const std::vector<int> tasks = expand_task_counts(v.text(counts));
    int64_t sum = 0;
    for (const int t : tasks) sum += t;
    if (sum != place.ranks) v.contradiction(ranks, counts, "the tasks per node must add up to all tasks");
    v.less("SLURM_NODEID", place.node, counts, static_cast<int>(tasks.size()));
    place.local_ranks = tasks[static_cast<size_t>(place.node)];
    v.less("SLURM_LOCALID", place.local_rank, counts, place.local_ranks);
    const std::vector<std::string> hosts = expand_node_list(v.text(nodes));
    if (hosts.size() != tasks.size()) v.contradiction(nodes, counts, "they count the nodes of one step");
    if (!place.one_node()) place.host = hosts.front();
}

// What names this start of this job on all its ranks; empty if the launcher has no such thing.
std::string job_of(const Variables& v, Launcher source) {
    switch (source) {
        case Launcher::torchrun:
        case Launcher::pmix:
            return fmt::format(
                "{} restart {}",
                v.has("TORCHELASTIC_RUN_ID") ? v.text("TORCHELASTIC_RUN_ID") : v.text("PMIX_NAMESPACE"),
                v.text("TORCHELASTIC_RESTART_COUNT"));
        case Launcher::slurm:
            return fmt::format("{}.{} restart {}", v.text("SLURM_JOB_ID"), v.text("SLURM_STEP_ID"),
                               v.text("SLURM_RESTART_COUNT"));
        case Launcher::open_mpi:
            for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
                if (v.has(name)) return v.text(name);
            return {};
        case Launcher::pmi:
            return v.text("PMI_JOBID");
        case Launcher::none:
        case Launcher::spawn:
            break;
    }
    return {};
}

void check_host(const std::string& host, const std::string& from) {
    const auto fits = [](unsigned char c) {
        return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '.' || c == '-' ||
               c == '_' || c == ':' || c == '%';
    };
    require(!host.empty() && host.size() <= 255 && std::all_of(host.begin(), host.end(), fits),
            ExitCode::usage, "{} is not a host name or an address", from);
    require(host != "0.0.0.0" && host != "::", ExitCode::usage,
            "{} means every interface of a machine; rank 0 listens only on the one address the others use",
            from);
}

void find_meeting_point(const Variables& v, RankPlace& place) {
    if (v.has("MASTER_ADDR")) {
        place.host = v.text("MASTER_ADDR");
        check_host(place.host, v.shown_pair("MASTER_ADDR"));
    } else {
        check_host(place.host, "the first of SLURM's nodes, " + shown(place.host) + ",");
    }
    if (place.ranks == 1) return;
    const std::string job = job_of(v, place.source);
    const bool mpi = place.source != Launcher::torchrun && place.source != Launcher::slurm;
    if (mpi && !place.one_node() && !v.has("MASTER_ADDR"))
        throw Error(ExitCode::usage,
                    fmt::format("{} on several nodes: {} does not say where rank 0 runs", place.ranks_from,
                                launcher_name(place.source)),
                    "set MASTER_ADDR to the name or address of rank 0's machine and MASTER_PORT to a free "
                    "port there");
    // torchrun's agent may itself serve on MASTER_PORT; its ranks are then only its clients.
    const bool taken = v.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (v.has("LONGREACH_PORT")) {
        place.port = static_cast<int>(v.integer("LONGREACH_PORT", 1, 65535));
    } else if (v.has("MASTER_PORT") && !taken) {
        place.port = static_cast<int>(v.integer("MASTER_PORT", 1, 65535));
    } else {
        if (job.empty())
            throw Error(ExitCode::usage,
                        fmt::format("{}: {} does not name its job, so no port can be made from it",
                                    place.ranks_from, launcher_name(place.source)),
                        "set MASTER_PORT to a port that is free on rank 0's machine");
        const std::string key =
            fmt::format("{} {} {}", launcher_name(place.source), job, v.text("MASTER_PORT"));
        place.port = first_port + static_cast<int>(xxh64(key) % ports);
    }
}

// A name in a node list up to a ',' outside brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view list, const std::string& shown_list) {
    std::vector<std::string_view> parts;
    size_t start = 0;
    bool inside = false;
    for (size_t i = 0; i <= list.size(); ++i) {
        if (i == list.size() || (list[i] == ',' && !inside)) {
            parts.push_back(list.substr(start, i - start));
            start = i + 1;
        } else if (list[i] == '[' || list[i] == ']') {
            require(inside == (list[i] == ']'), ExitCode::usage,
                    "the node list {} has brackets that do not match", shown_list);
            inside = list[i] == '[';
        }
    }
    require(!inside, ExitCode::usage, "the node list {} has brackets that do not match", shown_list);
    return parts;
}

// "01-03,7" -> 01 02 03 7: leading zeros keep the width.
std::vector<std::string> expand_ranges(std::string_view ranges, const std::string& shown_list) {
    std::vector<std::string> numbers;
    for (size_t start = 0; start <= ranges.size();) {
        const size_t comma = std::min(ranges.find(',', start), ranges.size());
        const std::string_view range = ranges.substr(start, comma - start);
        const size_t dash = range.find('-');
        const std::string_view from = range.substr(0, dash);
        const std::string_view to = dash == std::string_view::npos ? from : range.substr(dash + 1);
        uint32_t bounds[2];
        for (int i = 0; i < 2; ++i) {
            const std::string_view text = i == 0 ? from : to;
            const std::optional<uint32_t> number = whole_number<uint32_t>(text, 0, 999999999);
            require(number && text.size() <= 9, ExitCode::usage,
                    "the node list {} has {} where numbers belong", shown_list, shown(range));
            bounds[i] = *number;
        }
        require(bounds[0] <= bounds[1], ExitCode::usage, "the node list {} counts backwards in {}",
                shown_list, shown(range));
        require(bounds[1] - bounds[0] < most_hosts && numbers.size() + bounds[1] - bounds[0] < most_hosts,
                ExitCode::usage, "the node list {} stands for more than {} hosts", shown_list, most_hosts);
        for (uint32_t n = bounds[0]; n <= bounds[1]; ++n)
            numbers.push_back(fmt::format("{:0{}}", n, from.size()));
        start = comma + 1;
    }
    return numbers;
}

}  // namespace

std::string_view launcher_name(Launcher launcher) {
    return names_of(launcher).title;
}

Environment process_environment() {
    Environment environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const size_t equals = text.find('=');
        if (equals != std::string_view::npos)
            environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
    return environment;
}

RankPlace place_from(const Environment& environment) {
    const Variables v(environment);
    RankPlace place;
    if (v.has("LONGREACH_SPAWNED")) {
        place.source = Launcher::spawn;
        v.need("--ranks", "LONGREACH_SPAWNED", {"RANK", "MASTER_ADDR", "MASTER_PORT", "LONGREACH_RUN_TOKEN"});
        read_place(v, names_of(place.source), place);
        place.host = v.text("MASTER_ADDR");
        check_host(place.host, v.shown_pair("MASTER_ADDR"));
        place.port = static_cast<int>(v.integer("MASTER_PORT", 1, 65535));
        if (place.rank == 0 && v.has("LONGREACH_LISTENING"))
            place.listening = static_cast<int>(v.integer("LONGREACH_LISTENING", 3, 1 << 20));
        return place;
    }
    const std::vector<Launcher> found = present(v);
    if (found.empty()) {
        if (v.has("WORLD_SIZE") && v.count("WORLD_SIZE") > 1) v.need("torchrun", "WORLD_SIZE", {"RANK"});
        return place;
    }
    place.source = found.front();
    if (place.source == Launcher::slurm) {
        read_slurm(v, place);
    } else {
        read_place(v, names_of(place.source), place);
        if (place.source == Launcher::torchrun) {
            v.need("torchrun", "RANK", {"MASTER_ADDR", "MASTER_PORT"});
            if (v.has("GROUP_RANK")) place.node = v.index("GROUP_RANK");
        }
    }
    // Under torchrun itself the other launchers' variables are those of its agent, one of which may serve
    // many ranks. Where somebody set RANK by hand, they describe this process.
    if (!v.has("TORCHELASTIC_RUN_ID")) compare(v, place.source, place, found);
    find_meeting_point(v, place);
    place.job = fmt::format("{} {}", launcher_name(place.source), job_of(v, place.source));
    return place;
}

bool must_spawn(const RankPlace& place, int ranks_option) {
    require(ranks_option >= 0 && ranks_option <= 1024, ExitCode::usage,
            "--ranks {} is not from 1 to 1024: all of them run on this machine", ranks_option);
    if (ranks_option == 0) return false;
    if (place.source == Launcher::none) return ranks_option > 1;
    // One task of srun or mpirun is how many start a program on a compute node: it may well start the ranks.
    if (place.ranks == 1 && place.source != Launcher::torchrun && place.source != Launcher::spawn)
        return ranks_option > 1;
    // The ranks our parent started see its command line.
    if (ranks_option != place.ranks)
        throw Error(
            ExitCode::usage,
            fmt::format("--ranks {} but {} has started {} ({})", ranks_option, launcher_name(place.source),
                        counted(static_cast<size_t>(place.ranks), "rank"), place.ranks_from),
            "leave --ranks out: the launcher decides");
    return false;
}

std::string run_token(const RankPlace& place, const Environment& environment) {
    const Variables v(environment);
    if (v.has("LONGREACH_RUN_TOKEN")) {
        const std::string token = v.text("LONGREACH_RUN_TOKEN");
        const bool good = token.size() >= 16 && token.size() <= 1024;
        require(good, ExitCode::usage, "LONGREACH_RUN_TOKEN has {} characters; 16 to 1024 are allowed",
                token.size());
        return token;
    }
    const std::string what =
        fmt::format("longreach run\n{}\n{}\n{}\n{}", place.job, place.host, place.port, place.ranks);
    return hexadecimal(bytes_of(hmac_sha256(v.text("LONGREACH_SECRET"), what)));
}

std::vector<std::string> expand_node_list(std::string_view list) {
    const std::string shown_list = quoted(list);
    std::vector<std::string> hosts;
    for (const std::string_view part : split_outside_brackets(list, shown_list)) {
        require(!part.empty(), ExitCode::usage, "the node list {} has an empty name", shown_list);
        std::vector<std::string> names = {""};
        for (size_t at = 0; at < part.size();) {
            const size_t open = std::min(part.find('[', at), part.size());
            for (std::string& name : names) name += part.substr(at, open - at);
            if (open == part.size()) break;
            const size_t close = part.find(']', open);
            const std::vector<std::string> numbers =
                expand_ranges(part.substr(open + 1, close - open - 1), shown_list);
            require(names.size() * numbers.size() <= most_hosts, ExitCode::usage,
                    "the node list {} stands for more than {} hosts", shown_list, most_hosts);
            std::vector<std::string> longer;
            for (const std::string& name : names)
                for (const std::string& number : numbers) longer.push_back(name + number);
            names = std::move(longer);
            at = close + 1;
        }
        require(hosts.size() + names.size() <= most_hosts, ExitCode::usage,
                "the node list {} stands for more than {} hosts", shown_list, most_hosts);
        hosts.insert(hosts.end(), names.begin(), names.end());
    }
    return hosts;
}

std::vector<int> expand_task_counts(std::string_view list) {
    std::vector<int> counts;
    for (size_t start = 0; start <= list.size();) {
        const size_t comma = std::min(list.find(',', start), list.size());
        const std::string_view part = list.substr(start, comma - start);
        const size_t open = std::min(part.find("(x"), part.size());
        const bool repeated = open < part.size();
        const int tasks = whole_number(part.substr(0, open), 1, most_ranks).value_or(0);
        int nodes = repeated ? 0 : 1;
        if (repeated && part.back() == ')')
            nodes = whole_number(part.substr(open + 2, part.size() - open - 3), 1, most_ranks).value_or(0);
        require(tasks > 0 && nodes > 0, ExitCode::usage, "{} is not a list of tasks per node such as 4(x2),3",
                quoted(list));
        require(counts.size() + static_cast<size_t>(nodes) <= most_hosts, ExitCode::usage,
                "the tasks per node {} are for more than {} nodes", quoted(list), most_hosts);
        counts.insert(counts.end(), static_cast<size_t>(nodes), tasks);
        start = comma + 1;
    }
    return counts;
}

}  // namespace longreach::ranks
