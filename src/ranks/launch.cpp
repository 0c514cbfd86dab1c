#include "ranks/launch.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/hash.h"
#include "base/sha256.h"
#include "base/text.h"

namespace longreach::ranks {

namespace {

constexpr int most_ranks = 1 << 16;  // far above any machine; limits the effect of a typing error
constexpr size_t most_hosts = 1 << 16;
constexpr int first_port = 15000, ports = 15000;  // below the range from which Linux takes outgoing ports

// SLURM steps from here on are not tasks of srun: a batch script, an interactive shell, the extern step.
constexpr int64_t first_special_step = 0xfffffff0;

// Empty unless all of `text` is a number from low to high.
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
    // Of two variables with the same meaning, the one that is set, preferably the first.
    std::string either(const std::string& first, const std::string& second) const {
        return has(first) ? first : second;
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
    int port(const std::string& name) const { return static_cast<int>(integer(name, 1, 65535)); }

    // `who` has set `first` and must then have set the others too.
    void need(std::string_view who, const std::string& first, const std::vector<std::string>& others) const {
        for (const std::string& name : others)
            if (!has(name))
                throw Error(ExitCode::usage,
                            fmt::format("{} is set but {} is not: this set of {}'s variables is incomplete",
                                        shown_pair(first), name, who),
                            fmt::format("set {} too, or unset {} to start a single process", name, first));
    }
    void agree(bool ok, const std::string& a, const std::string& b, const std::string& why) const {
        if (ok) return;
        throw Error(ExitCode::usage,
                    fmt::format("the environment contradicts itself: {} but {}: {}", shown_pair(a),
                                shown_pair(b), why),
                    "unset the one that does not describe this process");
    }
    void less(const std::string& a, int index, const std::string& b, int count) const {
        agree(index < count, a, b, "the first must be smaller");
    }
    void not_more(const std::string& a, int part, const std::string& b, int whole) const {
        agree(part <= whole, a, b, "the first must not be larger");
    }

  private:
    const Environment& environment_;
};

std::vector<std::string_view> split_at_commas(std::string_view list) {
    std::vector<std::string_view> parts;
    for (size_t start = 0; start <= list.size();) {
        const size_t comma = std::min(list.find(',', start), list.size());
        parts.push_back(list.substr(start, comma - start));
        start = comma + 1;
    }
    return parts;
}

// A launcher's name in messages and its variables. A process is one of its ranks if `rank` is set.
struct LauncherNames {
    std::string_view title;
    std::string rank, ranks, local_rank, local_ranks;
    std::string_view job;  // variables that together identify this start of the job on all its ranks
};

const LauncherNames& names_of(Launcher launcher) {
    static const LauncherNames all[] = {
        {"no launcher", "", "", "", "", ""},
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
         "TORCHELASTIC_RUN_ID,TORCHELASTIC_RESTART_COUNT"},
        {"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "",
         "SLURM_JOB_ID,SLURM_STEP_ID,SLURM_RESTART_COUNT"},
        {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE,OMPI_MCA_ess_base_jobid"},
        {"MPICH (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
        {"PMIx", "PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PMIX_NAMESPACE"},
        {"--ranks", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ""},
    };
    return all[static_cast<size_t>(launcher)];
}

bool slurm_task(const Variables& v) {
    if (!v.has("SLURM_PROCID")) return false;  // salloc's shell
    if (!v.has("SLURM_STEP_ID")) {
        // A batch script has process number 0; SLURM never sets another number without a step.
        v.agree(v.index("SLURM_PROCID") == 0, "SLURM_PROCID", "SLURM_STEP_ID", "srun always sets both");
        return false;
    }
    return v.integer("SLURM_STEP_ID", 0, 0xffffffff) < first_special_step;
}

// The variable with the number of ranks. Under srun SLURM_NTASKS may be that of the whole allocation.
std::string ranks_variable(const Variables& v, Launcher launcher) {
    return launcher == Launcher::slurm ? v.either("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
                                       : names_of(launcher).ranks;
}

std::vector<Launcher> present(const Variables& v) {
    std::vector<Launcher> found;
    for (const Launcher launcher :
         {Launcher::torchrun, Launcher::slurm, Launcher::open_mpi, Launcher::pmi, Launcher::pmix})
        if (launcher == Launcher::slurm ? slurm_task(v) : v.has(names_of(launcher).rank))
            found.push_back(launcher);
    return found;
}

// All launchers whose variables are set must agree on the rank and the number of ranks.
void compare(const Variables& v, const RankPlace& place, const std::vector<Launcher>& found) {
    const auto compare_count = [&](const std::string& theirs) {
        v.agree(!v.has(theirs) || v.count(theirs) == place.ranks, ranks_variable(v, place.source), theirs,
                "they count the ranks of one run");
    };
    for (const Launcher other : found) {
        if (other == place.source) continue;
        // PMIX_RANK comes with srun and Open MPI and has no number of ranks of its own.
        if (other != Launcher::pmix) compare_count(ranks_variable(v, other));
        const std::string& rank = names_of(other).rank;
        v.agree(v.index(rank) == place.rank, names_of(place.source).rank, rank,
                "they number the same process");
    }
    if (place.source != Launcher::torchrun) compare_count("WORLD_SIZE");
}

void read_place(const Variables& v, RankPlace& place) {
    const LauncherNames& names = names_of(place.source);
    v.need(names.title, names.rank, {names.ranks, names.local_rank, names.local_ranks});
    place.rank = v.index(names.rank);
    place.ranks = v.count(names.ranks);
    place.local_rank = v.index(names.local_rank);
    place.local_ranks = v.count(names.local_ranks);
    place.ranks_from = v.shown_pair(names.ranks);
    v.less(names.rank, place.rank, names.ranks, place.ranks);
    v.less(names.local_rank, place.local_rank, names.local_ranks, place.local_ranks);
    v.not_more(names.local_rank, place.local_rank, names.rank, place.rank);
    v.not_more(names.local_ranks, place.local_ranks, names.ranks, place.ranks);
}

void read_slurm(const Variables& v, RankPlace& place) {
    const std::string ranks = ranks_variable(v, Launcher::slurm);
    const std::string nodes = v.either("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    const std::string counts = v.either("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
    v.need("SLURM", "SLURM_PROCID", {ranks, "SLURM_LOCALID", "SLURM_NODEID", nodes, counts, "SLURM_JOB_ID"});
    place.rank = v.index("SLURM_PROCID");
    place.ranks = v.count(ranks);
    place.local_rank = v.index("SLURM_LOCALID");
    const int node = v.index("SLURM_NODEID");
    place.ranks_from = v.shown_pair(ranks);
    v.less("SLURM_PROCID", place.rank, ranks, place.ranks);
    const std::vector<int> tasks = expand_task_counts(v.text(counts));
    v.agree(std::accumulate(tasks.begin(), tasks.end(), int64_t{0}) == place.ranks, ranks, counts,
            "the tasks per node must add up to all tasks");
    v.less("SLURM_NODEID", node, counts, static_cast<int>(tasks.size()));
    place.local_ranks = tasks[static_cast<size_t>(node)];
    v.less("SLURM_LOCALID", place.local_rank, counts, place.local_ranks);
    const NodeList hosts = read_node_list(v.text(nodes));
    v.agree(hosts.count == tasks.size(), nodes, counts, "they count the nodes of one step");
    if (!place.one_node()) place.host = hosts.first;
}

// Empty if the launcher does not name its job.
std::string job_of(const Variables& v, Launcher source) {
    std::vector<std::string> values;
    for (const std::string_view name : split_at_commas(names_of(source).job))
        if (v.has(std::string(name))) values.push_back(v.text(std::string(name)));
    return join(values, " ");
}

void check_host(const std::string& host, const std::string& from) {
    constexpr const char* allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%";
    require(!host.empty() && host.size() <= 255 && host.find_first_not_of(allowed) == host.npos,
            ExitCode::usage, "{} is not a host name or an address", from);
    require(host != "0.0.0.0" && host != "::", ExitCode::usage,
            "{} means every interface of a machine; rank 0 listens only on the one address the others use",
            from);
}

void find_address_and_port(const Variables& v, RankPlace& place) {
    if (v.has("MASTER_ADDR")) {
        place.host = v.text("MASTER_ADDR");
        check_host(place.host, v.shown_pair("MASTER_ADDR"));
    } else {
        check_host(place.host, "the first of SLURM's nodes, " + shown(place.host) + ",");
    }
    if (place.ranks == 1) return;
    const std::string_view launcher = launcher_name(place.source);
    const bool mpi = place.source != Launcher::torchrun && place.source != Launcher::slurm;
    if (mpi && !place.one_node() && !v.has("MASTER_ADDR"))
        throw Error(
            ExitCode::usage,
            fmt::format("{} on several nodes: {} does not say where rank 0 runs", place.ranks_from, launcher),
            "set MASTER_ADDR to the name or address of rank 0's machine and MASTER_PORT to a free "
            "port there");
    // torchrun's agent may itself listen on MASTER_PORT.
    const bool taken = v.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    for (const char* name : {"LONGREACH_PORT", "MASTER_PORT"}) {
        if (!v.has(name) || (taken && name == std::string_view("MASTER_PORT"))) continue;
        place.port = v.port(name);
        return;
    }
    const std::string job = job_of(v, place.source);
    if (job.empty())
        throw Error(ExitCode::usage,
                    fmt::format("{}: {} does not name its job, so no port can be made from it",
                                place.ranks_from, launcher),
                    "set MASTER_PORT to a port that is free on rank 0's machine");
    const uint64_t hash = xxh64(fmt::format("{} {} {}", launcher, job, v.text("MASTER_PORT")));
    place.port = first_port + static_cast<int>(hash % ports);
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
        read_place(v, place);
        place.host = v.text("MASTER_ADDR");
        check_host(place.host, v.shown_pair("MASTER_ADDR"));
        place.port = v.port("MASTER_PORT");
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
        read_place(v, place);
        if (place.source == Launcher::torchrun) v.need("torchrun", "RANK", {"MASTER_ADDR", "MASTER_PORT"});
    }
    // Under torchrun itself the other launchers' variables describe its agent, which may have started several
    // ranks. If RANK was set by hand, they describe this process.
    if (!v.has("TORCHELASTIC_RUN_ID")) compare(v, place, found);
    find_address_and_port(v, place);
    place.job = fmt::format("{} {}", launcher_name(place.source), job_of(v, place.source));
    return place;
}

bool must_spawn(const RankPlace& place, int ranks_option) {
    require(ranks_option >= 0 && ranks_option <= 1024, ExitCode::usage,
            "--ranks {} is not from 1 to 1024: all of them run on this machine", ranks_option);
    if (ranks_option == 0) return false;
    if (place.source == Launcher::none) return ranks_option > 1;
    // srun and mpirun with one task are common ways to start a program on a compute node.
    if (place.ranks == 1 && place.source != Launcher::torchrun && place.source != Launcher::spawn)
        return ranks_option > 1;
    // Ranks that our own spawn started have its command line.
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
        require(token.size() >= 16 && token.size() <= 1024, ExitCode::usage,
                "LONGREACH_RUN_TOKEN has {} characters; 16 to 1024 are allowed", token.size());
        return token;
    }
    const std::string what =
        fmt::format("longreach run\n{}\n{}\n{}\n{}", place.job, place.host, place.port, place.ranks);
    return hexadecimal(hmac_sha256(v.text("LONGREACH_SECRET"), what));
}

NodeList read_node_list(std::string_view list) {
    const auto refuse = [&](const std::string& problem) {
        fail(ExitCode::usage, "the node list {} {}", quoted(list), problem);
    };
    // Of "01-03,7": the numbers, of which `first` is "01".
    const auto count_numbers = [&](std::string_view ranges, std::string_view& first) {
        size_t count = 0;
        for (const std::string_view range : split_at_commas(ranges)) {
            const std::string_view from = range.substr(0, range.find('-'));
            const std::string_view to = range.substr(from.size() == range.size() ? 0 : from.size() + 1);
            const auto low = whole_number<uint32_t>(from, 0, 999999999);
            const auto high = whole_number<uint32_t>(to, 0, 999999999);
            if (!low || !high) refuse(fmt::format("has {} where numbers belong", shown(range)));
            if (*low > *high) refuse(fmt::format("counts backwards in {}", shown(range)));
            if (count == 0) first = from;
            count += *high - *low + 1;
        }
        return count;
    };
    NodeList hosts;
    for (size_t at = 0; at <= list.size(); ++at) {  // one name, up to a comma outside brackets
        std::string name;
        size_t count = 1;
        for (; at < list.size() && list[at] != ','; ++at) {
            const size_t close = list[at] == '[' ? list.find_first_of("[]", at + 1) : at;
            if (list[at] == ']' || close == list.npos || (close > at && list[close] == '['))
                refuse("has brackets that do not match");
            std::string_view part = list.substr(at, 1);
            if (close > at) count *= count_numbers(list.substr(at + 1, close - at - 1), part);
            if (count > most_hosts) break;
            name += part;
            at = close;
        }
        if (name.empty()) refuse("has an empty name");
        if (hosts.count == 0) hosts.first = name;
        hosts.count += count;
        if (hosts.count > most_hosts) refuse(fmt::format("names more than {} hosts", most_hosts));
    }
    return hosts;
}

std::vector<int> expand_task_counts(std::string_view list) {
    std::vector<int> counts;
    for (const std::string_view part : split_at_commas(list)) {
        const size_t open = std::min(part.find("(x"), part.size());
        const auto tasks = whole_number(part.substr(0, open), 1, most_ranks);
        std::optional<int> nodes = 1;
        if (open < part.size())
            nodes = whole_number(part.substr(open + 2, part.size() - open - 3), 1, most_ranks);
        require(tasks && nodes && (open == part.size() || part.back() == ')'), ExitCode::usage,
                "{} is not a list of tasks per node such as 4(x2),3", quoted(list));
        require(counts.size() + static_cast<size_t>(*nodes) <= most_hosts, ExitCode::usage,
                "the tasks per node {} are for more than {} nodes", quoted(list), most_hosts);
        counts.insert(counts.end(), static_cast<size_t>(*nodes), *tasks);
    }
    return counts;
}

}  // namespace longreach::ranks
