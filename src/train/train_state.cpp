#include "train/train_state.h"

#include "base/hash.h"
#include "base/text.h"

namespace longreach::train {

json::Value TrainState::to_json() const {
    json::Value files = json::Value::object();
    for (const auto& [name, bytes] : file_bytes) files.set(name, bytes);
    json::Value validation = json::Value::object();
    for (const auto& [name, fingerprint] : data.validation) validation.set(name, format_hash64(fingerprint));
    json::Value v = json::Value::object();
    v.set("format", 1)
        .set("step", step)
        .set("tokens", tokens)
        .set("updates", updates)
        .set("skipped", skipped)
        .set("bad_in_a_row", bad_in_a_row)
        .set("spikes", spikes)
        .set("spikes_skipped", spikes_skipped)
        .set("spike_window", spike_window.to_json())
        .set("pending", pending)
        .set("data_fingerprint", format_hash64(data.training))
        .set("tokenizer", format_hash64(data.tokenizer))
        .set("validation_fingerprints", validation)
        .set("file_bytes", files)
        .set("fingerprints", fingerprints);
    return v;
}

TrainState TrainState::from_json(const json::Value& value) {
    const auto integer = [&](const char* key) {
        const json::Value* v = value.find(key);
        const auto n = v ? v->to_int64() : std::nullopt;
        require(n.has_value() && *n >= 0, ExitCode::checkpoint, "state.json: {} is missing or no count", key);
        return *n;
    };
    require(integer("format") == 1, ExitCode::checkpoint,
            "state.json: format {} is not known to this version", integer("format"));
    TrainState s;
    s.step = integer("step");
    s.tokens = integer("tokens");
    s.updates = integer("updates");
    s.skipped = integer("skipped");
    s.bad_in_a_row = integer("bad_in_a_row");
    // Members that earlier versions did not write.
    if (value.find("spikes")) s.spikes = integer("spikes");
    if (value.find("spikes_skipped")) s.spikes_skipped = integer("spikes_skipped");
    if (const json::Value* window = value.find("spike_window"))
        s.spike_window = SpikeWindow::from_json(*window);
    if (const json::Value* pending = value.find("pending")) {
        require(pending->to_bool().has_value(), ExitCode::checkpoint,
                "state.json: pending is neither true nor false");
        s.pending = pending->as_bool();
    }
    const json::Value* fingerprint = value.find("data_fingerprint");
    const std::string* text = fingerprint ? fingerprint->to_string() : nullptr;
    require(text && parse_hash64(*text, s.data.training), ExitCode::checkpoint,
            "state.json: data_fingerprint is missing or malformed");
    if (const json::Value* tokenizer = value.find("tokenizer"))
        require(tokenizer->to_string() && parse_hash64(*tokenizer->to_string(), s.data.tokenizer),
                ExitCode::checkpoint, "state.json: tokenizer is malformed");
    if (const json::Value* validation = value.find("validation_fingerprints")) {
        require(validation->is_object(), ExitCode::checkpoint,
                "state.json: validation_fingerprints is malformed");
        for (const json::Member& m : validation->as_object())
            require(m.value.to_string() && parse_hash64(*m.value.to_string(), s.data.validation[m.key]),
                    ExitCode::checkpoint, "state.json: the fingerprint of {} is malformed", quoted(m.key));
    }
    const json::Value* files = value.find("file_bytes");
    require(files && files->is_object(), ExitCode::checkpoint, "state.json: file_bytes is missing");
    for (const json::Member& m : files->as_object()) {
        const auto bytes = m.value.to_int64();
        require(bytes && *bytes >= 0, ExitCode::checkpoint, "state.json: file_bytes of {} is not a count",
                m.key);
        s.file_bytes[m.key] = *bytes;
    }
    const json::Value* fingerprints = value.find("fingerprints");
    s.fingerprints = fingerprints && fingerprints->to_bool().value_or(false);
    return s;
}

}  // namespace longreach::train
