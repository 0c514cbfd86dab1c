// Tables as LaTeX.
#include <doctest/doctest.h>

#include "table/latex.h"

using namespace longreach;

TEST_CASE("no character of a text is a command") {
    CHECK(table::latex_text("a_b & 50% #1 $x$ {y} ^ ~") ==
          "a\\_b \\& 50\\% \\#1 \\$x\\$ \\{y\\} \\textasciicircum{} \\textasciitilde{}");
    CHECK(table::latex_text("\\input{/etc/passwd}") == "\\textbackslash{}input\\{/etc/passwd\\}");
    CHECK(table::latex_text("<a|b>\"") == "\\textless{}a\\textbar{}b\\textgreater{}\\char34{}");
    CHECK(table::latex_text("--set a---b - c") == "-{}-set a-{}-{}-b - c");
    CHECK(table::latex_text("\u22120.5 \u00B1 0.1, \u221A2, größer\u2026") ==
          "$-$0.5 $\\pm$ 0.1, $\\surd$2, größer\\ldots{}");
    CHECK(table::latex_text("a\nb\tc\x1b\xff") == "a b c??");
    CHECK(table::latex_text("") == "");
}

TEST_CASE("a table has the rules of booktabs, columns by kind, strong means and intervals in one column") {
    table::DataTable table{.name = "losses",
                           .caption = "Loss & more",
                           .header = {"variant", "loss", "95% interval from", "to", "seeds"},
                           .interval = 2};
    table::Cell best = table::spread_cell(0.5, 0.25, 2);
    best.tone = "best";
    table.rows = {{table::name_cell("a_b"), best, {"\u22120.1"}, {"+0.2"}, {"3"}},
                  {table::name_cell("[c]"), {"1.00"}, "", "", {"1"}}};
    CHECK(table::latex(table) == R"(\begin{table}
  \centering
  \caption{Loss \& more}
  \label{tab:losses}
  \begin{tabular}{lrrr}
    \toprule
    variant & loss & 95\% interval & seeds \\
    \midrule
    a\_b & \textbf{0.50} $\pm$ 0.25 & [$-$0.1, +0.2] & 3 \\
    {}[c] & 1.00 &  & 1 \\
    \bottomrule
  \end{tabular}
\end{table}
)");
}

TEST_CASE("a table without rows or with empty names is still a table") {
    const std::string text = table::latex({.caption = "c", .header = {"", "x"}});
    CHECK(text.find("\\begin{tabular}{ll}") != std::string::npos);
    CHECK(text.find("     & x \\\\\n") != std::string::npos);
}
