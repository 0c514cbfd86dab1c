// The functions that -fsanitize=thread and -fsanitize=undefined make compiled kernels call, answered by the
// harness instead of the compilers' own libraries. Outside of a kernel they do nothing.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "simt/machine.h"

namespace longreach::simt {

namespace {

[[noreturn, gnu::cold]] void misaligned(uintptr_t address, size_t bytes, uintptr_t place) {
    Machine& m = machine();
    Finding finding{Kind::misaligned, m.name_address(address) + ": " + m.name_thread(m.block, m.current) +
                                          " accesses " + std::to_string(bytes) + " bytes at " +
                                          Place(place).text()};
    finding.place = Place(place).text();
    m.fatal(std::move(finding));
}

inline void hook(const void* at, size_t bytes, bool aligned, Use use, void* place) {
    Machine& m = machine();
    if (!m.running || !m.watching) return;
    auto address = reinterpret_cast<uintptr_t>(at);
    if (m.stacks.contains(address)) {  // most accesses: variables of the threads
        // g++ calls the hook of 16 bytes for a variable of two float2 too, which is aligned to 8. A wrong cast of a
        // variable's address is a finding of -fsanitize=alignment.
        m.warpgroups.access_stack(address, bytes, use, reinterpret_cast<uintptr_t>(place));
    } else {
        if (aligned && (address & (bytes - 1)) != 0)
            misaligned(address, bytes, reinterpret_cast<uintptr_t>(place));
        memory_access(address, bytes, use, reinterpret_cast<uintptr_t>(place));
    }
    if (m.until_preemption != 0 && --m.until_preemption == 0) {
        m.until_preemption = 1 + static_cast<int>(m.random() % 64);
        m.pass_on();
    }
}

// As the compiler lays them out.
struct SourceLocation {
    const char* file;
    uint32_t line, column;
};
struct TypeDescriptor {
    uint16_t kind, info;
    char name[1];
};
struct TypeMismatch {
    SourceLocation at;
    const TypeDescriptor* type;
    unsigned char log_alignment, kind;
};

[[noreturn]] void wrong(Kind kind, const SourceLocation& at, const std::string& text) {
    Machine& m = machine();
    Place place;
    place.file = at.file;
    place.line = at.line;
    place.column = at.column;
    if (!m.running) {
        std::fprintf(stderr, "%s: %s\n", place.text().c_str(), text.c_str());
        std::abort();
    }
    Finding finding{kind, m.name_thread(m.block, m.current) + " at " + place.text() + ": " + text};
    finding.place = place.text();
    m.fatal(std::move(finding));
}

}  // namespace

}  // namespace longreach::simt

using longreach::simt::hook;
using longreach::simt::Kind;
using longreach::simt::Use;
using longreach::simt::wrong;

#define RETURN_ADDRESS __builtin_extract_return_addr(__builtin_return_address(0))
#define HOOKS(bytes)                                        \
    void __tsan_read##bytes(void* at) {                     \
        hook(at, bytes, true, Use::read, RETURN_ADDRESS);   \
    }                                                       \
    void __tsan_write##bytes(void* at) {                    \
        hook(at, bytes, true, Use::write, RETURN_ADDRESS);  \
    }                                                       \
    void __tsan_volatile_read##bytes(void* at) {            \
        hook(at, bytes, true, Use::read, RETURN_ADDRESS);   \
    }                                                       \
    void __tsan_volatile_write##bytes(void* at) {           \
        hook(at, bytes, true, Use::write, RETURN_ADDRESS);  \
    }                                                       \
    void __tsan_unaligned_read##bytes(void* at) {           \
        hook(at, bytes, false, Use::read, RETURN_ADDRESS);  \
    }                                                       \
    void __tsan_unaligned_write##bytes(void* at) {          \
        hook(at, bytes, false, Use::write, RETURN_ADDRESS); \
    }                                                       \
    void __tsan_unaligned_volatile_read##bytes(void* at) {  \
        hook(at, bytes, false, Use::read, RETURN_ADDRESS);  \
    }                                                       \
    void __tsan_unaligned_volatile_write##bytes(void* at) { \
        hook(at, bytes, false, Use::write, RETURN_ADDRESS); \
    }

// Atomics of the host's code in the same file (reference counts and the like): the plain operation, in order.
#define ATOMIC_FETCH(bits, type, name)                                        \
    type __tsan_atomic##bits##_fetch_##name(volatile type* at, type v, int) { \
        return __atomic_fetch_##name(at, v, 5);                               \
    }
#define ATOMICS(bits, type)                                                                             \
    type __tsan_atomic##bits##_load(const volatile type* at, int) {                                     \
        return __atomic_load_n(at, 5);                                                                  \
    }                                                                                                   \
    void __tsan_atomic##bits##_store(volatile type* at, type v, int) {                                  \
        __atomic_store_n(at, v, 5);                                                                     \
    }                                                                                                   \
    type __tsan_atomic##bits##_exchange(volatile type* at, type v, int) {                               \
        return __atomic_exchange_n(at, v, 5);                                                           \
    }                                                                                                   \
    ATOMIC_FETCH(bits, type, add)                                                                       \
    ATOMIC_FETCH(bits, type, sub)                                                                       \
    ATOMIC_FETCH(bits, type, and)                                                                       \
    ATOMIC_FETCH(bits, type, or)                                                                        \
    ATOMIC_FETCH(bits, type, xor)                                                                       \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* was, type v, int, int) { \
        return __atomic_compare_exchange_n(at, was, v, false, 5, 5);                                    \
    }                                                                                                   \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* was, type v, int, int) {   \
        return __atomic_compare_exchange_n(at, was, v, true, 5, 5);                                     \
    }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* at, size_t bytes) {
    hook(at, bytes, false, Use::read, RETURN_ADDRESS);
}
void __tsan_write_range(void* at, size_t bytes) {
    hook(at, bytes, false, Use::write, RETURN_ADDRESS);
}

ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}

void __ubsan_handle_type_mismatch_v1(longreach::simt::TypeMismatch* data, uintptr_t address) {
    if (address == 0) wrong(Kind::host_access, data->at, "a null pointer is used");
    uintptr_t alignment = uintptr_t{1} << data->log_alignment;
    if (address % alignment != 0)
        wrong(Kind::misaligned, data->at,
              std::string("an address that is no multiple of ") + std::to_string(alignment) + " for a " +
                  data->type->name);
}
void __ubsan_handle_out_of_bounds(longreach::simt::SourceLocation* at, uintptr_t index) {
    // The index is passed as it is up to 64 bits; a negative one of 32 bits shows as such.
    auto value = static_cast<int64_t>(index);
    if (index <= 0xffffffffu) value = static_cast<int32_t>(static_cast<uint32_t>(index));
    wrong(Kind::array_out_of_bounds, *at, "index " + std::to_string(value) + " is outside of the array");
}
void __ubsan_handle_shift_out_of_bounds(longreach::simt::SourceLocation* at, uintptr_t, uintptr_t by) {
    wrong(Kind::invalid_arithmetic, *at, "a shift by " + std::to_string(static_cast<int64_t>(by)));
}
void __ubsan_handle_divrem_overflow(longreach::simt::SourceLocation* at, uintptr_t, uintptr_t) {
    wrong(Kind::invalid_arithmetic, *at, "an integer division by zero or beyond the type");
}

}  // extern "C"
