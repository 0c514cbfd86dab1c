# Libraries: the system's packages where present, otherwise a pinned source archive checked by its hash.
# -DLONGREACH_FETCH=ON ignores the system's packages (the way of a machine that has none).
option(LONGREACH_FETCH "Build fmt, CLI11, nlohmann/json, spdlog and doctest from pinned archives instead of using system packages" OFF)
include(FetchContent)

# So that the program runs when it is copied to a machine without these libraries.
option(LONGREACH_STATIC "Link all libraries but the C library's into the program, where static ones are to be had" ON)

# Threads: the loops of the CPU kernels (src/base/pool.h), loading batches in the background, and watching other ranks.
find_package(Threads REQUIRED)
# Gloo: sums between ranks that train on CPUs. Optional; it has no pinned archive.
find_package(Gloo QUIET)
# PCRE2: the regular expressions with which tokenizers split text, as their files state them; they need Unicode classes
# and look-ahead, which std::regex and RE2 lack. utf8proc: the normal forms of Unicode (NFC) that tokenizers ask for.
# Optional; they have no pinned archive. Without both, the program refuses tokenizers.
function(optional_library name file header)
    find_path(${name}_INCLUDE ${header})
    set(names ${file})
    if(LONGREACH_STATIC)
        list(PREPEND names lib${file}.a)
    endif()
    find_library(${name}_LIBRARY NAMES ${names})
    if(${name}_INCLUDE AND ${name}_LIBRARY)
        add_library(longreach_${name} INTERFACE)
        target_include_directories(longreach_${name} SYSTEM INTERFACE ${${name}_INCLUDE})
        target_link_libraries(longreach_${name} INTERFACE ${${name}_LIBRARY})
    endif()
endfunction()
optional_library(pcre2 pcre2-8 pcre2.h)
optional_library(utf8proc utf8proc utf8proc.h)
# zlib and Zstandard unpack the text that `data tokenize` reads. Optional: without one, its archives are refused.
optional_library(zlib z zlib.h)
optional_library(zstd zstd zstd.h)
# CUDA toolkit, cuBLASLt and NCCL (kernels/cuda and src/ranks find them when LONGREACH_CUDA is on):
#   nvcc and the runtime compile and launch the kernels; the runtime is linked statically and needs only a driver.
#   cuBLASLt computes matrix products, tuned for every GPU; opened when a GPU is first used.
#   NCCL sums between GPUs over NVLink and the network; opened when several ranks train on GPUs.

# Those that are built from their archives are not installed.
foreach(rule FMT_INSTALL CLI11_INSTALL JSON_Install SPDLOG_INSTALL)
    set(${rule} OFF CACHE INTERNAL "")
endforeach()
set(DOCTEST_NO_INSTALL ON CACHE INTERNAL "")
function(use_library name version url hash)
    if(NOT LONGREACH_FETCH)
        find_package(${name} QUIET)
        if(${name}_FOUND)
            return()
        endif()
    endif()
    message(STATUS "${name}: building the pinned archive ${version}")
    FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${hash} SYSTEM)
    FetchContent_MakeAvailable(${name})
endfunction()

# fmt: formats every number and message; std::format is missing from g++ 12.
use_library(fmt 9.1.0 https://github.com/fmtlib/fmt/archive/refs/tags/9.1.0.tar.gz
    5dea48d1fcddc3ec571ce2058e13910a0d4a6bab4cc09a809d8b1dd1c88ae6f2)
# fmt as the sources link it. A shared one gives way to cmake/fmt_static.cpp, if this version of fmt takes that.
add_library(longreach_fmt INTERFACE)
get_target_property(fmt_type fmt::fmt TYPE)
if(LONGREACH_STATIC AND fmt_type STREQUAL "SHARED_LIBRARY")
    get_target_property(fmt_headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
    try_compile(LONGREACH_FMT_STATIC ${PROJECT_BINARY_DIR}/fmt_static
                SOURCES ${CMAKE_CURRENT_LIST_DIR}/fmt_static.cpp ${CMAKE_CURRENT_LIST_DIR}/fmt_static_test.cpp
                CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${fmt_headers}" CXX_STANDARD 20)
endif()
if(LONGREACH_FMT_STATIC)
    add_library(longreach_fmt_static STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_static.cpp)
    set_target_properties(longreach_fmt_static PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(longreach_fmt_static SYSTEM PUBLIC ${fmt_headers})
    target_link_libraries(longreach_fmt INTERFACE longreach_fmt_static)
else()
    target_link_libraries(longreach_fmt INTERFACE fmt::fmt)
endif()
# CLI11: reads the command line and writes --help.
use_library(CLI11 2.3.2 https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.3.2.tar.gz
    aac0ab42108131ac5d3344a9db0fdf25c4db652296641955720a4fbe52334e22)
# nlohmann/json: reads and escapes JSON (src/base/json_parse.cpp, json_write.cpp). The tree is ours, because it keeps
# positions, repeated keys and exact integers, and so are the messages and the layout of files, which never changes.
use_library(nlohmann_json 3.11.2 https://github.com/nlohmann/json/archive/refs/tags/v3.11.2.tar.gz
    d69f9deb6a75e2580465c6c4c5111b89c4dc2fa94e3a85fcd2ffcd9a143d9273)
# spdlog: messages (src/base/messages.cpp), the console's lines and log.txt (src/train/console.cpp; its sink writes
# through io's Disk, so that tests can make the disk fail). Header-only: Debian's library is linked against the shared fmt.
set(SPDLOG_FMT_EXTERNAL ON)
use_library(spdlog 1.10.0 https://github.com/gabime/spdlog/archive/refs/tags/v1.10.0.tar.gz
    697f91700237dbae2326b90469be32b876b2b44888302afbc7aceb68bcfe8224)
add_library(longreach_spdlog INTERFACE)
target_include_directories(longreach_spdlog SYSTEM INTERFACE
    $<TARGET_PROPERTY:spdlog::spdlog_header_only,INTERFACE_INCLUDE_DIRECTORIES>)
target_link_libraries(longreach_spdlog INTERFACE longreach_fmt)
if(LONGREACH_TESTS)
    # doctest: runs the tests; one header that compiles quickly.
    set(DOCTEST_WITH_TESTS OFF CACHE INTERNAL "")
    use_library(doctest 2.4.11 https://github.com/doctest/doctest/archive/refs/tags/v2.4.11.tar.gz
        632ed2c05a7f53fa961381497bf8069093f0d6628c5f26286161fbd32a560186)
endif()

# Written by hand, and why:
#   thread pool                  OpenMP's loops end at barriers that wait for threads without a core, which halves the
#                                speed beside one busy neighbour; TBB's tasks are more than loops over items need
#   matrix products on the CPU   libraries split long sums over threads; ours give the same bits with any number of them
#   XXH64, CRC-32C, SHA-256      about 50 lines each with published test vectors; a library for each would be one more
#                                thing to install
#   Philox                       its numbers are part of the promise that a run can be repeated, so they must not change
#                                with a library
#   config reader and schema     one list of fields gives reader, defaults, help, schema and messages with file and line
#   safetensors                  a JSON header and raw data; the known readers are in Rust and Python
#   TensorBoard event files      five message types; protobuf and TensorFlow's schemas would be the alternative
#   CSV of results               unquoted cells that are appended to and truncated on resume; parsers do not do that
#   SVG charts and the report    one self-contained page without scripts from elsewhere; C++ plotting libraries draw
#                                through gnuplot, Python or a window system
#   Student's t, t quantiles     a page of code; Boost.Math would bring all of Boost
#   rendezvous, spawn, watchdog  Gloo and NCCL exchange tensors but do not start ranks, prove who they are, or say which
#                                one is stuck
