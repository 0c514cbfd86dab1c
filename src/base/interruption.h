// Long work that may become unwanted: a client has gone, a signal asks the process to stop.
//
// Who starts the work says on its thread how to find out (Interruption); the work asks now and then and ends with
// Interrupted, which is no Error: nothing went wrong. Loops of a Pool ask between items, on the thread that runs them.
#pragma once

#include <chrono>
#include <exception>
#include <functional>

namespace longreach {

struct Interrupted final : std::exception {
    const char* what() const noexcept override { return "interrupted"; }
};

// While an object exists, work on this thread can be interrupted. Objects on one thread nest: the newest counts, and one
// without a question protects the work from those before it.
class Interruption {
  public:
    using Question = std::function<bool()>;  // whether the work is unwanted; must not throw
    explicit Interruption(Question question = nullptr);
    ~Interruption();
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;

    // Whether work on this thread is unwanted. Once it is, it stays so.
    static bool asked();

  private:
    using Clock = std::chrono::steady_clock;
    Question question_;
    Interruption* outer_;
    Clock::time_point next_{};  // when to ask again
    bool unwanted_ = false;
};

// For loops with turns of microseconds: throws Interrupted if the work is unwanted.
void heed_interruption();

}  // namespace longreach
