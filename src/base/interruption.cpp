#include "base/interruption.h"

#include <utility>

namespace longreach {

namespace {

constexpr std::chrono::milliseconds between_questions(10);
constexpr unsigned turns = 64;  // between two looks at the clock

thread_local Interruption* newest = nullptr;

}  // namespace

Interruption::Interruption(Question question)
    : question_(std::move(question)), outer_(std::exchange(newest, this)) {}

Interruption::~Interruption() {
    newest = outer_;
}

bool Interruption::asked() {
    Interruption* const self = newest;
    if (self == nullptr || !self->question_) return false;
    if (self->unwanted_) return true;
    if (Clock::now() < self->next_) return false;
    self->unwanted_ = self->question_();
    self->next_ = Clock::now() + between_questions;
    return self->unwanted_;
}

void heed_interruption() {
    thread_local unsigned turn = 0;
    if (newest == nullptr || ++turn % turns != 0) return;
    if (Interruption::asked()) throw Interrupted();
}

}  // namespace longreach
