#include "simt/fibre.h"

#include <pthread.h>
#include <sys/mman.h>

#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "simt/address_sanitizer.h"

namespace longreach::simt {

#if defined(__x86_64__)

// rdi: where to leave the stack pointer; rsi: the stack pointer to go on with. The six registers are those a
// called function keeps; everything else was saved by the compiler at the call. Rounding modes are common to
// all fibres, as no kernel changes them.
asm(R"(
.text
.globl longreach_simt_switch
.type longreach_simt_switch, @function
longreach_simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size longreach_simt_switch, .-longreach_simt_switch
)");
extern "C" void longreach_simt_switch(FibreState* from, FibreState to);

namespace {

struct Stack {
    void* lowest;
    size_t bytes;
};
uintptr_t fibre_stacks = 0;  // the one FibreStacks there is

// The stack a state belongs to: a fibre's, else that of the program's thread.
void announce(FibreState state) {
    static const Stack of_thread = [] {
        pthread_attr_t attributes;
        void* lowest = nullptr;
        size_t bytes = 0;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            pthread_attr_getstack(&attributes, &lowest, &bytes);
            pthread_attr_destroy(&attributes);
        }
        return Stack{lowest, bytes};
    }();
    size_t at = reinterpret_cast<uintptr_t>(state) - fibre_stacks;
    Stack stack = of_thread;
    if (at < FibreStacks::most * FibreStacks::stride)
        stack = {reinterpret_cast<void*>(fibre_stacks + at / FibreStacks::stride * FibreStacks::stride +
                                         FibreStacks::guard),
                 FibreStacks::stride - FibreStacks::guard};
    leave_for_stack(stack.lowest, stack.bytes);
}

}  // namespace

void switch_fibre(FibreState* from, FibreState to) {
    if constexpr (!watched_by_hooks) announce(to);
    longreach_simt_switch(from, to);
    arrived_on_stack();
}

FibreState FibreStacks::start(size_t index, void (*entry)()) {
#else

// Portable and slower: swapcontext makes a system call for the signal mask.
void switch_fibre(FibreState* from, FibreState to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}

FibreState FibreStacks::start(size_t index, void (*entry)()) {
#endif
    if (base_ == 0) {
        void* at =
            mmap(nullptr, most * stride, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) throw std::bad_alloc();
        base_ = reinterpret_cast<uintptr_t>(at);
#if defined(__x86_64__)
        fibre_stacks = base_;
#endif
    }
    while (used_bytes_ <= index * stride) {
        void* body = reinterpret_cast<void*>(base_ + used_bytes_ + guard);
        if (mprotect(body, stride - guard, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
        used_bytes_ += stride;
    }
    uintptr_t end = base_ + (index + 1) * stride;
    allow(reinterpret_cast<void*>(end - stride + guard), stride - guard);  // of frames that never returned
#if defined(__x86_64__)
    // From below: six registers, the address `ret` goes to, and a return address of 0 where a debugger stops.
    // entry() finds the stack 8 bytes off a multiple of 16, as after any call.
    auto* words = reinterpret_cast<uintptr_t*>(end - 64);
    for (int i = 0; i < 6; ++i) words[i] = 0;
    words[6] = reinterpret_cast<uintptr_t>(entry);
    words[7] = 0;
    return words;
#else
    if (contexts_.size() <= index) contexts_.resize(index + 1, nullptr);
    if (contexts_[index] == nullptr) contexts_[index] = new ucontext_t;
    auto* context = static_cast<ucontext_t*>(contexts_[index]);
    getcontext(context);
    context->uc_stack.ss_sp = reinterpret_cast<void*>(end - stride + guard);
    context->uc_stack.ss_size = stride - guard;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
#endif
}

FibreStacks::~FibreStacks() {
    if (base_ != 0) munmap(reinterpret_cast<void*>(base_), most * stride);
#if !defined(__x86_64__)
    for (void* context : contexts_) delete static_cast<ucontext_t*>(context);
#endif
}

}  // namespace longreach::simt
