# Libraries: the system's packages where present, otherwise a pinned source archive checked by hash.
# -DLONGREACH_FETCH=ON skips the system's packages (the path a machine without them takes).
option(LONGREACH_FETCH "Build fmt, CLI11 and doctest from pinned archives instead of system packages" OFF)
include(FetchContent)

find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)

if(NOT LONGREACH_FETCH)
    find_package(fmt QUIET)
    find_package(CLI11 QUIET)
    find_package(doctest QUIET)
endif()
