#include "commands/completion.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace longreach::commands {

namespace {

using config::FieldInfo;

bool takes_value(const OptionInfo& option) {
    return !option.type.empty();
}

void offer(Completion& out, const std::string& typed, const std::string& text, const std::string& help) {
    if (text.starts_with(typed)) out.words.push_back({text, help});
}

// Fields one level at a time: "model." for "mo", then "model.width=", then the words of a choice.
void offer_fields(const FieldInfo& config, const std::string& typed, Completion& out) {
    const size_t equals = typed.find('=');
    if (equals != typed.npos) {
        const std::string path = typed.substr(0, equals);
        const FieldInfo* field = config::find_field(config, path);
        if (field == nullptr) return;
        for (const FieldInfo::Choice& choice : field->choices)
            offer(out, typed, path + "=" + choice.name, choice.help);
        if (field->kind == FieldInfo::Kind::flag)
            for (const char* value : {"true", "false"}) offer(out, typed, path + "=" + value, "");
        return;
    }
    const size_t dot = typed.rfind('.');
    const std::string section = typed.substr(0, dot == typed.npos ? 0 : dot);
    const FieldInfo* around = config::find_field(config, section);
    if (around == nullptr || config::holds_value(*around)) return;
    out.unfinished = true;
    if (around->kind != FieldInfo::Kind::section) {
        const size_t above = section.rfind('.');
        const bool entry =
            above != section.npos && config::find_field(config, section.substr(0, above)) == around;
        if (!entry && around->kind == FieldInfo::Kind::list)
            offer(out, typed, section + ".0.", "the first entry");
        if (!entry) return;
    }
    for (const FieldInfo& field : around->fields)
        offer(out, typed, config::field_path(section, field.name) + (config::holds_value(field) ? "=" : "."),
              field.help);
}

// `before`: the text before the value in the same word, "--precision=".
void offer_values(const OptionInfo& option, const FieldInfo& config, const std::string& before,
                  const std::string& typed, Completion& out) {
    if (option.names.back() == "--set") {
        offer_fields(config, typed, out);
    } else if (!option.words.empty()) {
        for (const std::string& word : option.words) offer(out, typed, word, "");
    } else {
        out.files = option.type == "TEXT";
    }
    for (Completion::Word& word : out.words) word.text.insert(0, before);
}

const OptionInfo* named(const std::vector<const CommandInfo*>& path, const std::string& name) {
    for (const CommandInfo* command : path)
        for (const OptionInfo& option : command->options)
            if (!option.argument && std::count(option.names.begin(), option.names.end(), name) > 0)
                return &option;
    return nullptr;
}

// Where the words before the last one have led.
struct Place {
    std::vector<const CommandInfo*> path;  // the program, its command, and so on
    std::set<const OptionInfo*> given;
    const OptionInfo* pending = nullptr;  // the option whose value comes next
    size_t arguments = 0;                 // given to the last command of the path
    bool only_arguments = false;          // after --
};

Place place_after(const CommandInfo& program, const std::vector<std::string>& words, size_t count) {
    Place at;
    at.path = {&program};
    for (size_t i = 0; i < count; ++i) {
        const std::string& word = words[i];
        if (at.pending != nullptr) {
            at.pending = nullptr;
        } else if (word == "--") {
            at.only_arguments = true;
        } else if (word.starts_with('-') && word.size() > 1 && !at.only_arguments) {
            const OptionInfo* option = named(at.path, word.substr(0, word.find('=')));
            if (option == nullptr) continue;
            at.given.insert(option);
            if (takes_value(*option) && word.find('=') == word.npos) at.pending = option;
        } else {
            const std::vector<CommandInfo>& commands = at.path.back()->commands;
            const auto command = std::find_if(commands.begin(), commands.end(),
                                              [&](const CommandInfo& c) { return c.name == word; });
            if (command != commands.end())
                at.path.push_back(&*command);
            else
                ++at.arguments;
        }
    }
    return at;
}

void offer_options(const Place& at, const std::string& typed, Completion& out) {
    for (size_t depth = at.path.size(); depth-- > 0;)
        for (const OptionInfo& option : at.path[depth]->options) {
            const bool again = at.given.count(&option) > 0 && !option.repeatable;
            const bool own =
                depth + 1 == at.path.size() || named({at.path.back()}, option.names.back()) == nullptr;
            if (option.argument || again || !own) continue;
            offer(out, typed, option.names.back(), option.help);
        }
}

}  // namespace

Completion complete(const CommandInfo& program, const FieldInfo& config,
                    const std::vector<std::string>& words) {
    Completion out;
    const std::string typed = words.empty() ? "" : words.back();
    const Place at = place_after(program, words, words.empty() ? 0 : words.size() - 1);
    const size_t equals = typed.find('=');
    if (at.pending != nullptr) {
        offer_values(*at.pending, config, "", typed, out);
    } else if (typed.starts_with("--") && equals != typed.npos && !at.only_arguments) {
        const OptionInfo* option = named(at.path, typed.substr(0, equals));
        if (option != nullptr && takes_value(*option))
            offer_values(*option, config, typed.substr(0, equals + 1), typed.substr(equals + 1), out);
    } else if (typed.starts_with('-') && !at.only_arguments) {
        offer_options(at, typed, out);
    } else {
        for (const CommandInfo& command : at.path.back()->commands)
            offer(out, typed, command.name, command.help);
        size_t next = 0;
        for (const OptionInfo& option : at.path.back()->options) {
            if (!option.argument) continue;
            if (next++ == at.arguments || option.repeatable) {
                offer_values(option, config, "", typed, out);
                break;
            }
        }
    }
    return out;
}

std::string to_text(const Completion& completion) {
    std::string out = completion.files ? "files\n" : completion.unfinished ? "stems\n" : "words\n";
    for (const Completion::Word& word : completion.words)
        out += fmt::format("{}\t{}\n", word.text, word.help);
    return out;
}

namespace {

// Bash splits --set a.b=c at the =, and replaces only what follows it.
constexpr const char* bash_script =
    R"(# Completion of longreach for bash; written by `longreach completion bash`.
_longreach() {
    local line word i kind reply=() words=()
    for ((i = 1; i <= COMP_CWORD; ++i)); do
        word=${COMP_WORDS[i]}
        if ((${#words[@]} > 0)) && [[ $word == "=" || (${words[-1]} == *= && ${COMP_WORDS[i - 1]} == "=") ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
    done
    while IFS= read -r line; do reply+=("${line%%$'\t'*}"); done < <("$1" completion words -- "${words[@]}" 2>/dev/null)
    kind=${reply[0]:-files}
    COMPREPLY=("${reply[@]:1}")
    if [[ $COMP_WORDBREAKS == *=* && ${words[-1]} == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#*=}"); fi
    case $kind in
        files) compopt -o default -o filenames 2>/dev/null ;;
        stems) compopt -o nospace 2>/dev/null ;;
    esac
}
complete -F _longreach longreach
)";

constexpr const char* zsh_script = R"(#compdef longreach
# Completion of longreach for zsh; written by `longreach completion zsh`.
_longreach() {
    local line kind
    local -a lines texts shown space
    lines=("${(@f)$("${words[1]}" completion words -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    kind=${lines[1]:-files}
    if [[ $kind == files ]]; then
        _files
        return
    fi
    [[ $kind == stems ]] && space=(-S '')
    for line in "${(@)lines[2,-1]}"; do
        texts+=("${line%%$'\t'*}")
        shown+=("${line/$'\t'/  }")
    done
    (( $#texts )) && compadd -l -d shown "${space[@]}" -- "${texts[@]}"
}
if [[ $funcstack[1] == _longreach ]]; then _longreach "$@"; else compdef _longreach longreach; fi
)";

constexpr const char* fish_script =
    R"(# Completion of longreach for fish; written by `longreach completion fish`.
function __longreach_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l lines ($words[1] completion words -- $words[2..-1] "$typed" 2>/dev/null)
    if test "$lines[1]" = files -o -z "$lines[1]"
        __fish_complete_path "$typed"
    else
        printf '%s\n' $lines[2..-1]
    end
end
complete -c longreach -f -a '(__longreach_complete)'
)";

}  // namespace

std::string completion_script(const std::string& shell) {
    if (shell == "bash") return bash_script;
    return shell == "zsh" ? zsh_script : fish_script;
}

}  // namespace longreach::commands
