// What the address sanitizer has to be told where it watches the kernels (LONGREACH_SIMT_ASAN) in place of
// the harness's hooks: which memory nobody may touch, and whose stack is in use. Nothing otherwise.
#pragma once

#include <cstddef>

#if defined(LONGREACH_SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace longreach::simt {

#if defined(LONGREACH_SIMT_ASAN)

constexpr bool watched_by_hooks = false;

inline void forbid(const void* at, size_t bytes) {
    __asan_poison_memory_region(at, bytes);
}
inline void allow(const void* at, size_t bytes) {
    __asan_unpoison_memory_region(at, bytes);
}
inline void leave_for_stack(const void* lowest, size_t bytes) {
    __sanitizer_start_switch_fiber(nullptr, lowest, bytes);
}
inline void arrived_on_stack() {
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
}

#else

constexpr bool watched_by_hooks = true;

inline void forbid(const void*, size_t) {}
inline void allow(const void*, size_t) {}
inline void leave_for_stack(const void*, size_t) {}
inline void arrived_on_stack() {}

#endif

}  // namespace longreach::simt
