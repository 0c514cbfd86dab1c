# Libraries: the system's packages where present, otherwise a pinned source archive checked by its hash.
# -DLONGREACH_FETCH=ON ignores the system's packages (the way of a machine that has none).
option(LONGREACH_FETCH "Build fmt, CLI11 and doctest from pinned archives instead of using system packages" OFF)
include(FetchContent)

find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)
# Optional, for it is needed only where several ranks train on CPUs, and has no pinned archive.
find_package(Gloo QUIET)

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

use_library(fmt 9.1.0 https://github.com/fmtlib/fmt/archive/refs/tags/9.1.0.tar.gz
    5dea48d1fcddc3ec571ce2058e13910a0d4a6bab4cc09a809d8b1dd1c88ae6f2)
use_library(CLI11 2.3.2 https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.3.2.tar.gz
    aac0ab42108131ac5d3344a9db0fdf25c4db652296641955720a4fbe52334e22)
if(LONGREACH_TESTS)
    set(DOCTEST_WITH_TESTS OFF CACHE INTERNAL "")
    use_library(doctest 2.4.11 https://github.com/doctest/doctest/archive/refs/tags/v2.4.11.tar.gz
        632ed2c05a7f53fa961381497bf8069093f0d6628c5f26286161fbd32a560186)
endif()
