// Defaults of the address sanitizer. Leaks: device memory is not the heap's, and the harness
// keeps its tables to the end. Containers: the harness, which is not instrumented, changes vectors
// that instrumented tests read.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
    return "detect_leaks=0:detect_container_overflow=0:detect_stack_use_after_return=0";
}
