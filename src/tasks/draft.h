// A sample before it is laid out to an exact length.
#pragma once

#include <functional>
#include <vector>

#include "tasks/lexicon.h"

namespace longreach::tasks {

struct Draft {
    std::vector<TokenList> pieces;  // go into the haystack, at random places
    bool ordered = false;           // they stay in this order
    int asked = -1;                 // the piece placed by the requested depth; -1: no such piece
    data::TaskHaystack haystack = data::TaskHaystack::noise;  // essay or noise, unless there are units
    std::vector<TokenList>
        units;  // the haystack itself, after noise that fills the rest; pieces go between them
    TokenList tail, answer, decoy;        // the decoy has as many tokens as the answer
    std::vector<int64_t> reference_ends;  // in `answer`; separators belong to the reference after them
    std::vector<TokenList> once;          // occur exactly once before the answer
    std::vector<TokenList> absent;        // do not occur there
};

// Inputs of a task for one sample.
struct DraftInput {
    const Lexicon& words;
    Dice& dice;
    const data::TaskConfig& config;
    data::TaskKind task;
    int64_t length;
};

Draft draft_retrieval(const DraftInput& in);  // needle, needle_s3, niah_...
Draft draft_tracking(const DraftInput& in);   // variable_tracking
Draft draft_common_words(const DraftInput& in);
Draft draft_frequent_words(const DraftInput& in);
Draft draft_string(const DraftInput& in);  // copy, reverse, sort, local_count, two_back
Draft draft_flip_flop(const DraftInput& in);
Draft draft_induction(const DraftInput& in);
Draft draft_recall(const DraftInput& in);  // associative_recall, multi_query_recall

// Appends answers and decoys reference by reference, with `separator` between them.
class AnswerList {
  public:
    AnswerList(Draft& draft, const Lexicon& words, std::string_view separator)
        : draft_(draft), words_(words), separator_(separator) {}
    // Each writes its reference to the tokens it is given. The decoy's may not occur in the prompt.
    void add(const std::function<void(TokenList&)>& answer, const std::function<void(TokenList&)>& decoy);

  private:
    Draft& draft_;
    const Lexicon& words_;
    std::string_view separator_;
};

// Tokens left for pieces and units; an Error(usage) that names the task if fewer than `needed`.
int64_t room(const DraftInput& in, const Draft& draft, int64_t needed);

}  // namespace longreach::tasks
