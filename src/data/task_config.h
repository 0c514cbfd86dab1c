// The "data.task" section of a config: synthetic tasks that need information from far back in the context.
// src/tasks makes the samples; data/formats/tasks.md has the grammar of each task.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"

namespace longreach::data {

enum class TaskKind {
    none,
    needle,
    needle_s3,
    niah_single,
    niah_multikey,
    niah_multivalue,
    niah_multiquery,
    variable_tracking,
    common_words,
    frequent_words,
    copy,
    induction,
    associative_recall,
    multi_query_recall,
    reverse,
    sort,
    local_count,
    two_back,
    flip_flop
};
enum class TaskHaystack { by_task, essay, noise, needles };
enum class TaskForm { automatic, text, gpt2, ids };
enum class TaskTerms { words, numbers, uuids };  // what a needle's key or value is

struct TaskConfig {
    TaskKind kind = TaskKind::none;
    int64_t seed = -1;
    TaskHaystack haystack = TaskHaystack::by_task;
    TaskForm form = TaskForm::automatic;
    TaskTerms keys = TaskTerms::words, values = TaskTerms::numbers;  // of the tasks niah_...
    std::string phrase = "The key is ";
    int64_t digits = 0;
    int64_t ids_first = -1;
    int64_t ids = 1024;
    int64_t samples = 64;

    // Not a field: a command evaluates tasks, so parameters matter though no stage trains on one.
    bool evaluated = false;

    void fields(config::Fields& f);
    void check(config::Problems& problems, int64_t vocab_size) const;

    bool is_text(int64_t vocab_size) const;
    int64_t first_id(int64_t vocab_size) const { return ids_first >= 0 ? ids_first : vocab_size - ids; }
    int64_t digits_of(TaskKind task) const;
};

std::string_view name_of(TaskKind task);
std::string_view name_of(TaskTerms terms);
TaskKind task_by_name(std::string_view name);  // Error(usage) lists the names; "none" is not a task
std::vector<TaskKind> all_tasks();

}  // namespace longreach::data
