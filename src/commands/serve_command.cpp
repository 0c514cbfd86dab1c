// longreach serve: answers completions over HTTP with a trained model.
#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "base/units.h"
#include "commands/opened_model.h"
#include "io/file.h"
#include "serve/chat.h"
#include "serve/engine.h"
#include "serve/service.h"
#include "train/device.h"
#include "train/signals.h"

namespace longreach::commands {

namespace {

constexpr const char* key_variable = "LONGREACH_SERVE_KEY";
constexpr size_t shortest_key = 16;

struct ServeOptions {
    ModelOptions model;
    serve::HttpOptions http{.host = "127.0.0.1", .port = 8080, .body = 0, .connections = 32};
    serve::EngineSize size;
    std::string key, name, chat_template, log, cache = "same";
    int64_t body = 4 << 20, seconds = 600;
};

constexpr uint64_t bodies_at_once = 8;  // of the largest, in memory

// Whether only programs of this machine reach the address.
bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

serve::PromptCache cache_of(const std::string& word) {
    if (word == "off") return serve::PromptCache::off;
    return word == "prefix" ? serve::PromptCache::prefix : serve::PromptCache::same;
}

std::string key_of(const ServeOptions& options) {
    const char* variable = std::getenv(key_variable);
    const std::string key = !options.key.empty() || variable == nullptr ? options.key : variable;
    require(key.empty() || key.size() >= shortest_key, ExitCode::usage,
            "the key has {} characters; at least {}", key.size(), shortest_key);
    if (key.empty() && !is_loopback(options.http.host))
        throw Error(
            ExitCode::usage,
            fmt::format("other machines reach {}, so that requests need a key", options.http.host),
            fmt::format("give --key, or the variable {}, which no list of processes shows", key_variable));
    return key;
}

// The run's directory, or that of the checkpoint.
std::string name_of(const io::Checkpoint& checkpoint) {
    const std::string parent = io::parent_path(checkpoint.path);
    return io::base_name(io::base_name(parent) == "checkpoints" ? io::parent_path(parent) : checkpoint.path);
}

// Where documents begin in prompts: as in the data, by the config or by the token that begins a text.
serve::DocumentRule documents_of(const train::Experiment& experiment, const serve::Vocabulary& vocabulary) {
    if (!experiment.data.document_mask) return {};
    const data::BoundaryConfig& boundary = experiment.data.boundary;
    if (boundary.token >= 0)
        return {static_cast<int32_t>(boundary.token), boundary.side == data::BoundarySide::after};
    return {vocabulary.boundary().value_or(-1)};
}

serve::EngineSize size_of(const ServeOptions& options, const train::Experiment& experiment,
                          const serve::Vocabulary& vocabulary) {
    serve::EngineSize size = options.size;
    if (size.context == 0) size.context = experiment.model.train_context;
    size.cache = cache_of(options.cache);
    size.time = std::chrono::seconds(options.seconds);
    size.documents = documents_of(experiment, vocabulary);
    return size;
}

// An engine, and the second model that it has for short texts if its contexts are long.
class LoadedEngine {
  public:
    LoadedEngine(OpenedModel& opened, const serve::Vocabulary& vocabulary, const serve::EngineSize& size) {
        // A GPU's passes are short, and wait in a queue that nothing gets ahead of.
        if (opened.ops->native_queue().device < 0) {
            train::SystemConfig system = opened.experiment.system;
            system.threads = 1;
            std::string note;
            brief_ops_ = train::open_device(system, note);
        }
        opened.build(size.context);
        opened.load(
            [&](model::Arena& arena, int64_t length) {
                serve::EngineSize planned = size;
                planned.context = length;
                engine_.reset();
                brief_.reset();
                std::optional<serve::Engine::Brief> brief;
                if (length >= serve::Engine::long_context && brief_ops_) {
                    plan_brief(opened, arena, length);
                    brief.emplace(serve::Engine::Brief{*brief_, *brief_ops_});
                }
                engine_.emplace(*opened.model, vocabulary, planned, brief);
                engine_->plan(arena, *opened.ops);
            },
            size.context, true);
        if (brief_) brief_->fill_tables(*opened.ops);
        if (brief_ops_) opened.held.lend(*brief_ops_);
    }
    serve::Engine& engine() { return *engine_; }

  private:
    void plan_brief(const OpenedModel& opened, model::Arena& arena, int64_t length) {
        const train::Experiment& experiment = opened.experiment;
        brief_.emplace(experiment.model, length, experiment.eval.rope);
        brief_->set_stage_window(experiment.window_at(std::max<int64_t>(opened.checkpoint.step - 1, 0)));
        brief_->plan_tables(arena);
    }
    std::unique_ptr<Ops> brief_ops_;
    std::optional<model::Transformer> brief_;
    std::optional<serve::Engine> engine_;
};

// Says what chat completions there will be. A template that the user named must be understood.
serve::Chat chat_of(const ServeOptions& options, OpenedModel& opened, const serve::Vocabulary& vocabulary) {
    const std::string run = io::parent_path(io::parent_path(opened.checkpoint.path));
    const serve::ChatFiles files = serve::read_chat_files(run, options.chat_template);
    serve::Chat chat(vocabulary, files);
    if (files.source.empty()) return chat;
    require(chat.problem().empty() || options.chat_template.empty(), ExitCode::data, "{}", chat.problem());
    opened.console.line(chat.problem().empty()
                            ? fmt::format("chat completions by the template {}", one_line(files.file))
                            : "no chat completions: " + chat.problem());
    return chat;
}

ExitCode serve_model(const ServeOptions& options) {
    const std::string key = key_of(options);
    const train::StopSignals signals;
    OpenedModel opened(options.model, false, [](train::Experiment&) {});
    const train::Experiment& experiment = opened.experiment;
    const serve::Vocabulary vocabulary(experiment.model.vocab_size, run_tokenizer(opened.checkpoint));
    const serve::EngineSize size = size_of(options, experiment, vocabulary);
    LoadedEngine loaded(opened, vocabulary, size);
    serve::Engine& engine = loaded.engine();
    if (experiment.data.document_mask && size.documents.token < 0)
        opened.console.line("no token is known to begin documents: every prompt counts as one");

    serve::ServiceOptions service;
    service.model = options.name.empty() ? name_of(opened.checkpoint) : options.name;
    service.key = key;
    service.body = static_cast<uint64_t>(options.body);
    if (key.empty()) service.hosts = {"localhost", "127.0.0.1", "[::1]", options.http.host};
    const serve::Chat chat = chat_of(options, opened, vocabulary);
    std::optional<serve::AccessLog> log;
    if (!options.log.empty()) log.emplace(options.log);
    serve::Service answers(engine, service, &chat, log ? &*log : nullptr);
    serve::HttpOptions http = options.http;
    http.body = service.body;
    http.bodies = bodies_at_once * service.body;
    const std::unique_ptr<serve::HttpServer> server = serve::open_http(http, answers);
    const bool six = http.host.find(':') != std::string::npos;
    opened.console.accompany();
    opened.console.line(fmt::format("serving {} at http://{}:{}, contexts of up to {} tokens; Ctrl-C ends it",
                                    service.model, six ? "[" + http.host + "]" : http.host, server->port(),
                                    size.context));
    engine.run(*opened.ops, opened.weights, [&] {
        if (const std::string problem = log ? log->take_problem() : ""; !problem.empty())
            opened.console.warn(problem);
        return train::StopSignals::received() != 0;
    });
    opened.console.line("stopped");
    return ExitCode::ok;
}

}  // namespace

void add_serve_command(Command& program) {
    auto options = std::make_shared<ServeOptions>();
    Command command =
        program.add("serve", "Answer completions and log-probabilities over HTTP, in OpenAI's form");
    add_model_options(command, options->model, ", for texts of --context tokens");
    command.option("--host", options->http.host, "Address to listen on; any but loopback needs a key")
        .show_default();
    command.option("--port", options->http.port, "Port; 0: any free one, which is printed")
        .in_range(0, 65535)
        .show_default();
    command.option(
        "--key", options->key,
        std::string("Answer only requests with 'Authorization: Bearer KEY'; also from the variable ") +
            key_variable);
    command.option("--log", options->log,
                   "Append a line of JSON for each request to this file, without keys and texts");
    command.option("--name", options->name, "Name of the model (default: that of the run)");
    command.option("--chat-template", options->chat_template,
                   "File with the template of chat completions (default: that of the run's tokenizer)");
    command
        .option("--context", options->size.context,
                "Most tokens of a prompt and its continuation (default: the training context)")
        .in_range(int64_t{1}, int64_t{1} << 31)
        .token_counts();
    command
        .option("--batch", options->size.batch, "Texts continued at once, if their prompts are equally long")
        .in_range(1, 256)
        .show_default();
    command.option("--queue", options->size.queue, "Choices that may wait or be answered; more are refused")
        .in_range(1, 1 << 16)
        .show_default();
    command.option("--connections", options->http.connections, "Connections at once; more are refused")
        .in_range(1, 1024)
        .show_default();
    command.option("--body", options->body, "Largest request: 4M (bytes)")
        .in_range(int64_t{1} << 10, int64_t{1} << 28)
        .token_counts();
    command
        .option("--max-answer", options->size.max_answer,
                "Largest answer: 32M (bytes); what could be larger is refused before any work")
        .in_range(int64_t{1} << 16, int64_t{1} << 32)
        .token_counts();
    command.option("--time", options->seconds, "Seconds after which a request is given up")
        .in_range(1, 86400)
        .show_default();
    command
        .option("--prompt-cache", options->cache,
                "Keep the last prompts: same (asked for again; same bits), prefix (also a common beginning; "
                "rounds otherwise), off")
        .one_of({"same", "prefix", "off"})
        .show_default();
    command.run([options] { return serve_model(*options); });
}

}  // namespace longreach::commands
