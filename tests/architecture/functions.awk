# Prints FILE, line, name, lines of the body and number of parameters of every function of sources in the repository's
# format, separated by tabs: a definition begins in column 0, or in column 4 of a type, and ends with a brace there.
function finish_signature(    i, c, depth, angle, count, any, name) {
    i = index(signature, "operator()") ? index(signature, "operator()") + 10 : 1
    while (i <= length(signature) && substr(signature, i, 1) != "(") ++i
    name = substr(signature, 1, i - 1)
    sub(/ +$/, "", name)
    sub(/^.*[ *&]/, "", name)
    for (++i; i <= length(signature); ++i) {
        c = substr(signature, i, 1)
        if (c == ")" && depth == 0) break
        if (c == "(" || c == "{" || c == "[") ++depth
        if (c == ")" || c == "}" || c == "]") --depth
        if (c == "<") ++angle
        if (c == ">" && substr(signature, i - 1, 1) != "-") --angle
        if (c == "," && depth == 0 && angle == 0) ++count
        if (c != " ") any = 1
    }
    parameters = any ? count + 1 : 0
    if (name == "TEST_CASE") {
        name = substr(signature, index(signature, "\"") + 1)
        sub(/".*$/, "", name)
        gsub(/ /, "_", name)
        parameters = 0
    }
    function_name = name
}
FNR == 1 { inside = 0; pending = 0 }
inside {
    if ($0 ~ closing) {
        print FILENAME, first, function_name, FNR - first, parameters
        inside = 0
    }
    next
}
/^ *(\/\/|#|KERNEL\()/ { next }
!pending && /^(    )?[A-Za-z_~:]/ && /\(/ && !/^ *(namespace|struct|class|union|enum|extern|using|typedef|if|for|while|switch|else|do|return|case|public|private|protected|static_assert|template|constexpr [^(]*=|static [^(]*=|const [^(]*=|inline [^(]*=)/ {
    pending = 1
    indent = match($0, /[^ ]/) - 1
    signature = ""
}
pending {
    text = $0
    sub(/ *\/\/.*$/, "", text)
    signature = signature " " text
    if (text ~ /[^{]\{$/ && text !~ /[,(]\{$/) {
        finish_signature()
        inside = 1
        first = FNR
        closing = indent == 0 ? "^\\}" : "^    \\}"
        pending = 0
    } else if (text ~ /[;}]$/) {
        if (text ~ /;$/ && signature !~ /"/) { # not an object that it initialises
            finish_signature()
            print FILENAME, FNR, function_name, 0, parameters
        }
        pending = 0
    }
}
