#include "tokenizer/json_steps.h"

#include "base/text.h"

namespace longreach::tokenizer {

namespace {

constexpr size_t most_steps = 64;  // a word passes through all of them, one inside the other

[[noreturn]] void refuse_type(const FileNode& node) {
    node.member("type").refuse(fmt::format("{} is not supported", quoted(node.text_of("type"))));
}

Pattern read_pattern(const FileNode& node) {
    const FileNode pattern = node.member("pattern");
    pattern.allow_only({"String", "Regex"});
    if (const auto literal = pattern.find("String"))
        return Pattern::literal(literal->text(), literal->where());
    const FileNode regex = pattern.member("Regex");
    return Pattern(regex.text(), regex.where());
}

SplitBehaviour read_behaviour(const FileNode& node) {
    const std::string name = node.text();
    if (name == "Removed") return SplitBehaviour::removed;
    if (name == "Isolated") return SplitBehaviour::isolated;
    if (name == "MergedWithPrevious") return SplitBehaviour::merged_with_previous;
    if (name == "MergedWithNext") return SplitBehaviour::merged_with_next;
    if (name == "Contiguous") return SplitBehaviour::contiguous;
    node.refuse(fmt::format("{} is not supported", quoted(name)));
}

// Metaspace states when it prepends by a scheme or, in older files, by a flag.
PrependScheme read_prepend(const FileNode& node) {
    const auto scheme = node.find("prepend_scheme");
    if (!scheme) return node.flag("add_prefix_space", true) ? PrependScheme::always : PrependScheme::never;
    const std::string name = scheme->text();
    if (name == "always") return PrependScheme::always;
    if (name == "first") return PrependScheme::first;
    if (name == "never") return PrependScheme::never;
    scheme->refuse(fmt::format("{} is not supported", quoted(name)));
}

void read_byte_level(const FileNode& node, Definition& definition) {
    node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (node.flag("add_prefix_space", true)) definition.splits.emplace_back(PrefixSpace{});
    if (node.flag("use_regex", true))
        definition.splits.emplace_back(PatternSplit{Pattern(gpt2_pattern, node.where())});
    definition.byte_level = true;
}

std::string read_replacement(const FileNode& node) {
    const FileNode replacement = node.member("replacement");
    const std::string text = replacement.text();
    if (utf8_length(text) != 1) replacement.refuse(fmt::format("{} is not one character", quoted(text)));
    return text;
}

}  // namespace

void read_normalizer(const FileNode& node, Definition& definition) {
    const std::string type = node.text_of("type");
    if (type == "Sequence") {
        node.allow_only({"type", "normalizers"});
        for (const FileNode& step : node.member("normalizers").elements()) read_normalizer(step, definition);
        return;
    }
    if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
        node.allow_only({"type"});
        definition.normalizer.emplace_back(type == "NFC"    ? NormalForm::nfc
                                           : type == "NFD"  ? NormalForm::nfd
                                           : type == "NFKC" ? NormalForm::nfkc
                                                            : NormalForm::nfkd);
    } else if (type == "Prepend") {
        node.allow_only({"type", "prepend"});
        definition.normalizer.emplace_back(Prepend{node.text_of("prepend")});
    } else if (type == "Replace") {
        node.allow_only({"type", "pattern", "content"});
        definition.normalizer.emplace_back(Replace{read_pattern(node), node.text_of("content")});
    } else {
        refuse_type(node);
    }
}

void read_pre_tokenizer(const FileNode& node, Definition& definition) {
    const std::string type = node.text_of("type");
    if (definition.byte_level) node.refuse("ByteLevel must be the last step");
    if (definition.splits.size() >= most_steps) node.refuse(fmt::format("more than {} steps", most_steps));
    if (type == "Sequence") {
        node.allow_only({"type", "pretokenizers"});
        for (const FileNode& step : node.member("pretokenizers").elements())
            read_pre_tokenizer(step, definition);
    } else if (type == "ByteLevel") {
        read_byte_level(node, definition);
    } else if (type == "Split") {
        node.allow_only({"type", "pattern", "behavior", "invert"});
        definition.splits.emplace_back(PatternSplit{
            read_pattern(node), read_behaviour(node.member("behavior")), node.flag("invert", false)});
    } else if (type == "Digits") {
        node.allow_only({"type", "individual_digits"});
        const bool individual = node.flag("individual_digits", false);
        definition.splits.emplace_back(
            PatternSplit{Pattern(individual ? R"(\p{N})" : R"(\p{N}+)", node.where())});
    } else if (type == "Metaspace") {
        node.allow_only({"type", "replacement", "str_rep", "prepend_scheme", "add_prefix_space", "split"});
        definition.splits.emplace_back(
            Metaspace{read_replacement(node), read_prepend(node), node.flag("split", true)});
    } else {
        refuse_type(node);
    }
}

void read_decoder(const FileNode& node, Definition& definition) {
    DecodeRules& rules = definition.decode;
    const std::string type = node.text_of("type");
    if (type == "Sequence") {
        node.allow_only({"type", "decoders"});
        for (const FileNode& step : node.member("decoders").elements()) read_decoder(step, definition);
    } else if (type == "ByteLevel") {
        if (!definition.byte_level) node.refuse("ByteLevel decodes, but the pre-tokenizer is not ByteLevel");
    } else if (type == "ByteFallback") {
        rules.byte_fallback = true;
    } else if (type == "Replace") {
        node.allow_only({"type", "pattern", "content"});
        const FileNode pattern = node.member("pattern");
        pattern.allow_only({"String"});
        const std::string from = pattern.text_of("String");
        if (from.empty()) pattern.refuse("an empty string to replace");
        rules.replacements.emplace_back(from, node.text_of("content"));
    } else if (type == "Strip") {
        node.allow_only({"type", "content", "start", "stop"});
        node.require_absent("stop", 0);
        rules.strip = node.text_of("content");
        rules.strip_count = node.number("start");
        if (rules.strip.empty()) node.refuse("an empty string to strip");
    } else if (type == "Metaspace") {
        node.allow_only({"type", "replacement", "str_rep", "prepend_scheme", "add_prefix_space", "split"});
        rules.replacements.emplace_back(read_replacement(node), " ");
        rules.strip = " ";
        rules.strip_count = read_prepend(node) == PrependScheme::never ? 0 : 1;
    } else if (type != "Fuse") {
        refuse_type(node);
    }
}

void check_post_processor(const FileNode& node) {
    const std::string type = node.text_of("type");
    if (type == "Sequence") {
        for (const FileNode& step : node.member("processors").elements()) check_post_processor(step);
    } else if (type != "ByteLevel" && type != "TemplateProcessing" && type != "RobertaProcessing" &&
               type != "BertProcessing") {
        refuse_type(node);
    }
}

}  // namespace longreach::tokenizer
